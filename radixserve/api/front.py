"""What every route needs.

Owns: the gateway, the configuration, the native service, the phase of life and the metrics of one
app. Must not know: routes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from radixserve.api.life import Life
from radixserve.config.schema import Config
from radixserve.metrics.prometheus import Metrics
from radixserve.native.calls import Calls, Door
from radixserve.native.service import NativeService


@dataclass(frozen=True, slots=True)
class Front:
    """calls: everything that this app has in flight, of all dialects. created: seconds, Unix."""

    gateway: Door
    config: Config
    service: NativeService
    life: Life
    metrics: Metrics
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def calls(self) -> Calls:
        return self.service.calls
