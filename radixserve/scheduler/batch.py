"""A StepPlan under construction, and the record of what a launched step was for.

Owns: the row arrays while they grow. Must not know: why a row is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from radixserve.plan import (
    Appended,
    CopyOrder,
    HiddenRange,
    Int32,
    Opened,
    Output,
    ScoreRange,
    SharedGroup,
    SlotId,
    StepPlan,
)
from radixserve.scheduler.request import Request
from radixserve.scheduler.sharing import shared_groups

_LAST_SAMPLED = np.zeros(1, np.int32)  # stands for the id that the row's slot drew last


class PlannedRow(NamedTuple):
    """computed_to: tokens computed once the row has run. scored_from: first prompt token that the
    row scores, None if it scores none. pools: it reports hidden states."""

    request: Request
    computed_to: int
    samples: bool
    scored_from: int | None
    pools: bool


_planned = tuple.__new__  # a third of the time of PlannedRow(..), for each row of each step
_NONE, _SAMPLE, _HIDDEN = int(Output.NONE), int(Output.SAMPLE), int(Output.HIDDEN)


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    step: int
    rows: tuple[PlannedRow, ...]


class StepBuilder:
    """Rows are added one at a time; build() makes the arrays."""

    def __init__(
        self, step: int, budget: int, page_size: int, *, shares_prefixes: bool = False
    ) -> None:
        self.step = step
        self.budget = budget
        self.retracted = False
        self._page_size = page_size
        self._shares_prefixes = shares_prefixes
        self._rows: list[PlannedRow] = []
        self._slots: list[int] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._outputs: list[int] = []
        self._draws: list[int] = []
        self._ids: list[Int32] = []
        self._tables: list[bytes] = []
        self._page_counts: list[int] = []
        self._scores: list[ScoreRange] = []
        self._hidden: list[HiddenRange] = []
        self._opened: list[Opened] = []
        self._appended: list[Appended] = []
        self.copies: list[CopyOrder] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> tuple[PlannedRow, ...]:
        return tuple(self._rows)

    def open(self, request: Request) -> None:
        """The request has taken its slot."""
        assert request.slot is not None
        request.told = len(request.output)
        self._opened.append(
            Opened(
                slot=request.slot,
                params=request.message.params,
                prompt=request.prompt,
                output=np.asarray(request.output, np.int32),
                stop_ids=request.check.stop_ids,
                logprobs=request.message.output_logprobs,
                logprob_ids=request.message.logprob_ids,
            )
        )

    def add(self, request: Request, end: int, ids: Int32 | None, *, samples: bool) -> None:
        """A row that computes tokens [request.computed, end) of the request.

        ids: those tokens, or None for the one its slot sampled last. samples: draw the next token.
        """
        start = request.computed
        self._tell_forced(request)
        scored_from = None if ids is None else self._score(request, start, end)
        pools = self._pool(request, start, end)
        self._rows.append(PlannedRow(request, end, samples, scored_from, pools))
        self._outputs.append(_HIDDEN if pools else _SAMPLE if samples else _NONE)
        self._draws.append(end if samples else 0)
        self._put(request, start, end, _LAST_SAMPLED if ids is None else ids)

    def add_decode(self, request: Request, end: int) -> None:
        """The same as add() of the token that its slot sampled last, of a request that decodes and
        has no grammar: nothing of it is forced, scored or pooled."""
        self._rows.append(_planned(PlannedRow, (request, end, True, None, False)))
        self._outputs.append(_SAMPLE)
        self._draws.append(end)
        self._put(request, request.computed, end, _LAST_SAMPLED)

    def _put(self, request: Request, start: int, end: int, ids: Int32) -> None:
        slot, lease = request.slot, request.lease
        assert slot is not None
        assert lease is not None
        self.budget -= end - start
        self._slots.append(slot)
        self._starts.append(start)
        self._ends.append(end)
        self._ids.append(ids)
        table, count = lease.table, -(-end // self._page_size)
        self._tables.append(table if len(table) == 4 * count else table[: 4 * count])
        self._page_counts.append(count)

    def _tell_forced(self, request: Request) -> None:
        """Tell the executor's penalties of output tokens that it has not sampled."""
        if request.told < len(request.output):
            assert request.slot is not None
            fresh = tuple(request.output[request.told :])
            self._appended.append(Appended(request.slot, fresh))
            request.told = len(request.output)

    def _score(self, request: Request, start: int, end: int) -> int | None:
        """Logits at position p score the token at p + 1; the prompt's last token scores none.

        Only prefill rows score: by the time a request decodes, its prompt is done.
        """
        if not request.wants_scores:
            return None
        first = max(start, request.scored - 1)
        last = min(end, request.prompt_len - 1)
        if first >= last:
            return None
        top = request.message.prompt_logprobs
        assert top is not None
        targets = request.prompt[first + 1 : last + 1]
        ids = request.message.logprob_ids
        self._scores.append(ScoreRange(len(self._rows), first, targets, top, ids))
        return first + 1

    def _pool(self, request: Request, start: int, end: int) -> bool:
        pooling = request.message.pooling
        if pooling is None or (pooling == "last" and end < request.prompt_len):
            return False
        first = start if pooling == "mean" else end - 1
        self._hidden.append(HiddenRange(len(self._rows), first))
        return True

    def build(self, closed: tuple[SlotId, ...]) -> StepPlan:
        """The finished plan; at least one row."""
        indptr = np.zeros(len(self._tables) + 1, np.int32)
        np.cumsum(self._page_counts, out=indptr[1:])
        positions = np.asarray(self._starts, np.int32)
        ends = np.asarray(self._ends, np.int32)
        lengths = ends - positions
        from_last = np.asarray([ids is _LAST_SAMPLED for ids in self._ids], np.bool_)
        only_decodes = bool(from_last.all())
        ids = np.zeros(len(ends), np.int32) if only_decodes else np.concatenate(self._ids)
        indices = np.frombuffer(bytearray().join(self._tables), np.int32)
        shared: tuple[SharedGroup, ...] = ()
        if self._shares_prefixes:
            shared = shared_groups(indptr, indices, positions, lengths, self._page_size)
        return StepPlan(
            step=self.step,
            slots=np.asarray(self._slots, np.int32),
            positions=positions,
            lengths=lengths,
            ids=ids,
            from_last=from_last,
            outputs=np.asarray(self._outputs, np.int8),
            page_indptr=indptr,
            page_indices=indices,
            samples=np.asarray(self._draws, np.int32),
            opened=tuple(self._opened),
            appended=tuple(self._appended),
            closed=closed,
            copies=tuple(self.copies),
            scores=tuple(self._scores),
            hidden=tuple(self._hidden),
            shared=shared,
        )
