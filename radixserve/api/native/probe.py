"""Health by generating.

Owns: the one probe that may be in flight. Must not know: routes, who asks.
"""

from __future__ import annotations

import asyncio

from radixserve.api.caller import Caller, acting_for
from radixserve.api.front import Front
from radixserve.metrics.trail import Origin

BODY = {
    "text": "Health",
    "sampling_params": {"max_new_tokens": 1, "temperature": 0},
    "cache_salt": "health probe",
}


class Probe:
    """Generates one token, for nobody: no metric counts it and no key pays for it.

    Who asks while a probe is in flight waits for that one, so probes never pile up; when the last
    who waits has gone, it is aborted.
    """

    def __init__(self, front: Front) -> None:
        self._front = front
        self._task: asyncio.Task[object] | None = None
        self._waiting = 0

    async def run(self) -> None:
        """Raises what the probe raised."""
        if self._task is None or self._task.done():
            with acting_for(Caller(origin=Origin(counted=False))):
                self._task = asyncio.create_task(self._front.service.generate(BODY))
        self._waiting += 1
        try:
            await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if not self._waiting:
                left, self._task = self._task, None  # who asks now must not join what is ending
                if left is not None:
                    left.cancel()
