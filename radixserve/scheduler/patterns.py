"""Whether a text that grows holds a match of a pattern.

Owns: a step of each automaton for each character. Must not know: tokens, what a pattern means.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Sequence

from radixserve.wire.params import StopPattern


class PatternWatch:
    """Fed the bytes of a text piece by piece; characters may span pieces."""

    __slots__ = ("_decoder", "_runs")

    def __init__(self, patterns: Sequence[StopPattern]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._runs = [_Run(pattern) for pattern in patterns]

    def feed(self, piece: bytes) -> str | None:
        """The pattern that is the first to match, if one does within this piece."""
        for char in self._decoder.decode(piece):
            code = ord(char)
            for run in self._runs:
                if run.step(code):
                    return run.pattern.text
        return None


class _Run:
    """state: None where nothing that follows can match any more."""

    __slots__ = ("_ends", "_lows", "pattern", "state")

    def __init__(self, pattern: StopPattern) -> None:
        self.pattern = pattern
        self.state: int | None = 0
        self._ends = frozenset(pattern.ends)
        self._lows: dict[int, list[int]] = {}

    def step(self, code: int) -> bool:
        state = self.state
        if state is None:
            return False
        moves = self.pattern.moves[state]
        lows = self._lows.get(state)
        if lows is None:
            lows = self._lows[state] = [low for low, _, _ in moves]
        at = bisect_right(lows, code) - 1
        self.state = moves[at][2] if at >= 0 and code <= moves[at][1] else None
        return self.state in self._ends
