"""A recorder that fails is a fault of the metrics, not of the requests that it is told of.

Owns: keeping what a recorder raises away from whoever tells it, and saying so once. Must not know:
what the recorder does.
"""

from __future__ import annotations

from collections.abc import Callable

from radixserve.log import logger
from radixserve.metrics.trail import Recorder, Trail


class Guarded:
    """A trail.Recorder that passes all on to `recorder` and never raises. The first failure is
    logged; the recorder is told of everything that comes after it too."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._has_failed = False

    def produced(self, trail: Trail, count: int, gap: float | None) -> None:
        self._try(lambda: self._recorder.produced(trail, count, gap))

    def ended(self, trail: Trail) -> None:
        self._try(lambda: self._recorder.ended(trail))

    def _try(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                name = type(self._recorder).__name__
                logger.exception("%s failed; what it counts is wrong from here on", name)
