"""A matcher for each constrained request.

Owns: where a request stands in its grammar, mask rows. Must not know: how grammars are compiled,
logits.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xgrammar

from radixserve.errors import InternalError
from radixserve.grammar.vocabulary import Vocabulary, Words


class Matcher:
    """One output under one grammar. stop_ids: what else than the vocabulary's own ends this
    request.

    All stop ids are masked until the grammar may end. A row is never empty: a grammar that no token
    can continue raises InternalError from fill.
    """

    def __init__(
        self,
        compiled: xgrammar.CompiledGrammar,
        vocabulary: Vocabulary,
        stop_ids: Iterable[int] = (),
    ) -> None:
        own = [token for token in stop_ids if 0 <= token < vocabulary.columns]
        self._stops = frozenset((*vocabulary.stop_ids, *own))
        self._stop_row = vocabulary.row_of(self._stops)
        self._ordinary = vocabulary.ordinary(own)
        self._state = xgrammar.GrammarMatcher(compiled)
        self._row: Words = np.zeros(vocabulary.words, np.int32)
        self._is_filled = False
        self._ended = False

    @property
    def finished(self) -> bool:
        """What has been accepted is a whole output: a stop id may follow."""
        return self._ended or bool(self._state.is_completed())

    @property
    def must_end(self) -> bool:
        """Only a stop id may follow."""
        if not self.finished:
            return False
        return not (self._current() & self._ordinary).any()

    def fill(self, mask_row: Words) -> None:
        """Write the ids that may come next. mask_row: int32 [ceil(columns / 32)], a set bit
        allows."""
        mask_row[:] = self._current()

    def accept(self, token: int) -> None:
        """Move on by a token that the last row allowed; any other raises ValueError."""
        if token in self._stops:
            if not self.finished:
                raise ValueError(f"stop id {token} before the grammar may end")
            self._ended = True
        elif self._ended or not self._state.accept_token(token):
            raise ValueError(f"token {token} is not allowed by the grammar here")
        self._is_filled = False

    def _current(self) -> Words:
        if not self._is_filled:
            if self._ended:
                self._row[:] = 0
            else:
                self._state.fill_next_token_bitmask(self._row.reshape(1, -1))
            self._settle()
        return self._row

    def _settle(self) -> None:
        """Takes out of a row as the grammar engine fills it what is never legal, puts the stops
        in."""
        self._row &= self._ordinary
        if self.finished:
            self._row |= self._stop_row
        elif not self._row.any():
            raise InternalError("no token of this vocabulary can continue the grammar")
        self._is_filled = True


class RowFiller:
    """Fills the mask rows of a batch, in native threads."""

    def __init__(self, threads: int) -> None:
        self._native = xgrammar.BatchGrammarMatcher(max_threads=threads)

    def fill(self, matchers: list[Matcher], rows: Words) -> None:
        """Row i for matcher i. rows: int32 [len(matchers), ceil(columns / 32)]."""
        stale = [m for m in matchers if not m._is_filled and not m._ended]
        if len(stale) > 1:
            block = np.empty((len(stale), rows.shape[1]), np.int32)
            self._native.batch_fill_next_token_bitmask([m._state for m in stale], block)
            for matcher, row in zip(stale, block):
                matcher._row[:] = row
                matcher._settle()
        for matcher, row in zip(matchers, rows):
            matcher.fill(row)
