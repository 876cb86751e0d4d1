"""A progress bar on standard error.

Owns: what it looks like and how often it is drawn. Must not know: batches.
"""

from __future__ import annotations

import contextlib
import sys
import time

WIDTH = 24
EVERY_SECONDS = 0.1


class Progress:
    """total: None where it is not known. Drawn at once, at most ten times a second, at the end."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._done = self._restored = 0
        self._begin = self._drawn = time.monotonic()
        self._is_open = False
        self._draw()

    def step(self, *, is_restored: bool = False) -> None:
        """One more is done. is_restored: it was before, so it says nothing of the speed."""
        self._done += 1
        self._restored += is_restored
        if self._done == self._total or time.monotonic() - self._drawn >= EVERY_SECONDS:
            self._draw()

    def close(self) -> None:
        """Leave the bar as it stands and end its line."""
        if self._done != self._total:
            self._draw()
        if self._is_open:
            _show("\n")
            self._is_open = False

    def _draw(self) -> None:
        self._drawn, self._is_open = time.monotonic(), True
        seconds = self._drawn - self._begin
        made = self._done - self._restored
        rate = f" {made / seconds:.1f}/s" if made and seconds > 0 else ""
        bar = ""
        if self._total:
            filled = WIDTH * self._done // self._total
            bar = f" [{'#' * filled}{'.' * (WIDTH - filled)}]"
        count = f"{self._done}/{'?' if self._total is None else self._total}"
        _show(f"\r{count}{bar}{rate}")


def _show(text: str) -> None:
    """A batch does not end because nobody can see how far it is."""
    with contextlib.suppress(OSError, ValueError):
        print(text, end="", file=sys.stderr, flush=True)
