"""Entries of log-probabilities, made once each.

Owns: their shape, and those of a prompt as its scores arrive. Must not know: the rest of an answer,
when it is sent.

An entry is [logprob or null, id, text or null]; null stands where none exists, as for the first
token of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixserve.native.collect import PromptScores
from radixserve.text.tokenizer import Tokenizer

Entry = list[Any]


class Spelt:
    """Makes entries; has_text: with the text of the token."""

    def __init__(self, tokenizer: Tokenizer, has_text: bool) -> None:
        self._text = tokenizer.token_text if has_text else lambda _: None

    def row(self, ids: Sequence[int], values: Sequence[float | None]) -> list[Entry]:
        """ids, values: [n]."""
        return [[value, token, self._text(token)] for value, token in zip(values, ids, strict=True)]

    def rows(self, ids: list[list[int]], values: list[list[float]]) -> list[list[Entry]]:
        """The best at each position; ids, values: [n][k]."""
        return [self.row(each, scores) for each, scores in zip(ids, values, strict=True)]


class PromptEntries:
    """Entries of the prompt's tokens from `start` on, shared by all outputs of the prompt.

    scores: grow as the engine sends them. is_scored: whether any will come. chosen: [n]; top: [n],
    null where there are none.
    """

    def __init__(
        self, ids: Sequence[int], start: int, scores: PromptScores, is_scored: bool, spelt: Spelt
    ) -> None:
        self.chosen: list[Entry] = []
        self.top: list[list[Entry] | None] = []
        self.scores = scores
        self._ids = ids
        self._start = start
        self._spelt = spelt
        if not is_scored:
            self.complete()

    @property
    def is_complete(self) -> bool:
        return self._end >= len(self._ids)

    def grow(self) -> None:
        """Take in the scores that are new."""
        if self.scores.end > self._end:
            self._leave_out(self.scores.start)
            begin, end = self._end, self.scores.end
            new = slice(begin - self.scores.start, None)
            self.chosen += self._spelt.row(self._ids[begin:end], self.scores.chosen[new])
            self.top += self._spelt.rows(self.scores.top_ids[new], self.scores.top[new])

    def complete(self) -> None:
        """No more scores come."""
        self._leave_out(len(self._ids))

    @property
    def _end(self) -> int:
        return self._start + len(self.chosen)

    def _leave_out(self, end: int) -> None:
        missing = self._ids[self._end : end]
        self.top += [None] * len(missing)
        self.chosen += self._spelt.row(missing, [None] * len(missing))
