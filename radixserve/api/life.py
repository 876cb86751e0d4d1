"""Where the server stands in its life, and how many calls are open.

Owns: the phase, the count. Must not know: signals, processes, what a call does.
"""

from __future__ import annotations

import asyncio
from typing import Literal


class Life:
    """loading: the model is not there yet. draining: open calls may end, new ones are refused."""

    def __init__(self, phase: Literal["loading", "serving", "draining"] = "serving") -> None:
        self.phase = phase
        self.open_calls = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    def enter(self) -> None:
        self.open_calls += 1
        self._quiet.clear()

    def leave(self) -> None:
        self.open_calls -= 1
        if not self.open_calls:
            self._quiet.set()

    async def quiet(self, timeout: float) -> bool:
        """Whether no call is open within `timeout` seconds."""
        try:
            await asyncio.wait_for(self._quiet.wait(), timeout)
        except TimeoutError:
            return False
        return True
