"""Reasoning in front of an answer that is bound, or within a budget.

Owns: when the reasoning of an output has ended, who ends it, what may be drawn before that. Must
not know: how an answer is bound, logits, the queue.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from radixserve.errors import InvalidRequest
from radixserve.guide import Close, Taken
from radixserve.wire.reasoning import Follower, Reasoning

Words = npt.NDArray[np.int32]


class Answer(Protocol):
    """The guide of the answer, as far as reasoning uses it; pool.Matcher is the one."""

    def begin(self, room: int, *, one_by_one: bool) -> Taken: ...
    def begin_free(self, *, one_by_one: bool) -> None: ...
    def take(self, token: int, room: int) -> Taken: ...
    def restart(self) -> None: ...
    def whole_at(self, size: int) -> bool: ...
    def allows(self, token: int) -> bool: ...
    def fits(self, room: int) -> bool: ...
    def fits_afresh(self, room: int) -> bool: ...
    def least(self) -> str: ...
    def shortest(self) -> list[int] | None: ...


class Bars:
    """Mask rows of reasoning before a bound answer, by how many bytes of the end tag stand last.

    Barred are `stops`, and tokens that would end the tag and go on, other than with the gap: what
    they go on with would be the answer's.
    """

    def __init__(
        self, reasoning: Reasoning, token_bytes: Sequence[bytes], stops: Iterable[int], columns: int
    ) -> None:
        bits = np.ones(-(-columns // 32) * 32, bool)
        bits[[token for token in stops if 0 <= token < columns]] = False
        self.rows = [_pack(bits)] * len(reasoning.end)
        tails = tuple(reasoning.end[n:] for n in range(len(reasoning.end)))
        suspects = [
            (token, piece)
            for token, piece in enumerate(token_bytes[:columns])
            if piece.startswith(tails) or reasoning.end in piece
        ]
        for matched in range(len(reasoning.end)):
            barred = [t for t, piece in suspects if _runs_over(reasoning, matched, piece)]
            if barred:
                narrow = bits.copy()
                narrow[barred] = False
                self.rows[matched] = _pack(narrow)


class Thinker:
    """One output that may reason; a guide.Guide.

    answer: the guide of what follows, None where that is free. bars: with an answer. columns: of
    the logits. Room is kept for the end tag and the shortest answer; where it runs out, they are
    appended.
    """

    def __init__(
        self,
        reasoning: Reasoning,
        token_bytes: Sequence[bytes],
        columns: int,
        answer: Answer | None = None,
        bars: Bars | None = None,
    ) -> None:
        self._reasoning = reasoning
        self._token_bytes = token_bytes
        self._words = -(-columns // 32)
        self._answer = answer
        self._bars = bars
        self._follower = Follower(reasoning.begin, reasoning.end, reasoning.start)
        self._gap_ids = reasoning.gap_ids[0] if answer is not None else ()
        self._closing = (*reasoning.end_ids, *self._gap_ids)
        self._count = 0
        self._plain = 0  # bytes of the output, control tokens left out, up to the answer
        self._pending: list[int] = []  # must come next, one by one
        self._then: Literal["reason", "answer", "close"] = "answer"  # behind what is pending
        self._is_answering = False
        self._is_first = True  # nothing has been taken
        self._one_by_one = False
        self._room = 0

    # ---- an output, token by token; see guide.Guide ----

    def begin(self, room: int, *, one_by_one: bool) -> Taken:
        self._one_by_one = one_by_one
        self._room = room
        is_open = self._reasoning.start == "open"
        behind = len(self._closing) if is_open else 0
        if self._answer is not None and not self._answer.fits(room - behind):
            tag = f" behind {len(self._closing)} that end the reasoning" if is_open else ""
            raise InvalidRequest(
                f"the shortest output that the constraint allows takes {self._answer.least()} "
                f"tokens{tag}, there is room for {room}",
                param="max_new_tokens",
            )
        if self._answer is not None and not is_open:
            self._answer.begin_free(one_by_one=one_by_one)
        if is_open and self._reasoning.budget == 0:
            return self._end((), room)
        return Taken(())

    def take(self, token: int, room: int) -> Taken:
        self._room = room
        if self._pending:
            return self._take_pending(token, room)
        if self._is_answering:
            return self._said(token, room)
        if self._follower.phase == "before" and self._answer is not None:
            return self._take_first(self._answer, token, room)
        return self._think(token, room)

    def whole_at(self, size: int) -> bool:
        if self._answer is None:
            return True
        if self._follower.phase == "before":
            return self._answer.whole_at(size)
        return self._is_answering and self._answer.whole_at(size - self._plain)

    # ---- masks ----

    @property
    def speaking(self) -> Answer | None:
        """The guide that knows what may come next, where it is the answer's."""
        return self._answer if self._is_answering or self._may_open else None

    @property
    def narrows(self) -> bool:
        """narrow() has something to say."""
        return bool(self._pending) or (self._answer is not None and not self._is_answering)

    def narrow(self, row: Words) -> None:
        """Write the ids that may come next into a row as `speaking` filled it, all ids without."""
        if self._pending:
            row[:] = 0
            _set(row, self._pending[0])
        elif self._may_open:
            if not self._is_first:
                return
            behind = len(self._reasoning.begin_ids) + len(self._closing)
            if self._answer is not None and self._answer.fits(self._room - behind):
                _set(row, self._reasoning.begin_ids[0])
        elif self._bars is not None and not self._is_answering:
            row[:] = self._bars.rows[self._follower.matched]

    @property
    def _may_open(self) -> bool:
        """The answer, which is bound, or the begin tag comes next."""
        if self._answer is None or self._is_answering or self._pending:
            return False
        return self._follower.phase == "before"

    # ---- inside ----

    def _take_first(self, answer: Answer, token: int, room: int) -> Taken:
        """While it is open whether the output reasons or answers; what the answer allows is the
        answer's until the begin tag is whole."""
        is_first, self._is_first = self._is_first, False
        if is_first and token == self._reasoning.begin_ids[0] and not answer.allows(token):
            return self._open(token, room)
        taken = answer.take(token, room)
        self._follow(taken.ids)
        if self._follower.phase == "before" and taken.close is None:
            return taken
        left = room + 1 - len(taken.ids)
        if self._follower.phase == "inside" and answer.fits_afresh(left - len(self._closing)):
            answer.restart()
            return self._opened(taken.ids, taken.forced, left)
        self._is_answering, self._plain = True, 0
        return taken

    def _open(self, token: int, room: int) -> Taken:
        """The begin tag, of which `token` was sampled."""
        begin = self._reasoning.begin_ids
        if self._one_by_one and len(begin) > 1:
            self._follow((token,))
            self._pending, self._then = list(begin[1:]), "reason"
            return Taken((token,), thoughts=1)
        self._follow(begin)
        return self._opened(begin, len(begin) - 1, room + 1 - len(begin))

    def _opened(self, ids: tuple[int, ...], forced: int, room: int) -> Taken:
        """Reasoning begins behind `ids`."""
        if self._reasoning.budget == 0:
            return self._ended(ids, self._closing, room, forced)
        return Taken(ids, forced, thoughts=len(ids))

    def _think(self, token: int, room: int) -> Taken:
        after = copy.copy(self._follower)
        after.feed(self._spelt(token))
        answer = self._answer
        if answer is not None:
            behind = self._gap_left(after) if after.phase == "behind" else self._closing
            if not answer.fits(room - len(behind)) and answer.shortest() is not None:
                return self._close(answer, self._closing)
        was_inside = self._follower.phase == "inside"
        self._follower = after
        self._plain += len(self._token_bytes[token])
        if after.phase == "behind":
            return self._ended((token,), self._gap_left(after), room)
        if after.phase == "none":
            self._is_answering = True
            return Taken((token,), stopped=True)
        if after.phase == "before":
            return Taken((token,), stopped=True)
        self._count += was_inside
        if self._reasoning.budget is not None and self._count >= self._reasoning.budget:
            return self._end((token,), room)
        return self._thought((token,), 0)

    def _gap_left(self, after: Follower) -> tuple[int, ...]:
        """The tokens of the gap that are still to come, behind the end tag."""
        if self._answer is None:
            return ()
        assert after.answer_at is not None
        return self._reasoning.gap_ids[after.size - after.answer_at]

    def _end(self, ids: tuple[int, ...], room: int) -> Taken:
        """The budget is used up. A part of the end tag would be taken for reasoning."""
        if self._answer is None and len(self._closing) > room:
            return Taken(ids, close=Close.SHORT, thoughts=len(ids))
        return self._ended(ids, self._closing, room)

    def _ended(
        self, ids: tuple[int, ...], more: Sequence[int], room: int, forced: int = 0
    ) -> Taken:
        """`ids`, the last `forced` of them not sampled, and `more`, and the answer begins."""
        if self._one_by_one and more:
            self._pending, self._then = list(more), "answer"
            return self._thought(ids, forced)
        self._plain += sum(len(self._token_bytes[token]) for token in more)
        return self._begin_answer((*ids, *more), forced + len(more), room - len(more))

    def _begin_answer(self, ids: tuple[int, ...], forced: int, room: int) -> Taken:
        self._is_answering = True
        if self._answer is None:
            return self._thought(ids, forced)
        first = self._answer.begin(room, one_by_one=self._one_by_one)
        return Taken(
            (*ids, *first.ids), forced + first.forced, close=first.close, thoughts=len(ids)
        )

    def _thought(self, ids: tuple[int, ...], forced: int) -> Taken:
        return Taken(ids, forced, stopped=self._answer is None, thoughts=len(ids))

    def _close(self, answer: Answer, closing: tuple[int, ...]) -> Taken:
        """The end of the reasoning and the shortest answer, in place of the sampled token."""
        ending = (*closing, *(answer.shortest() or ()))
        if not self._one_by_one or not ending:
            return Taken(ending, len(ending), Close.SHORT)
        self._pending, self._then = list(ending), "close"
        return Taken((), again=True)

    def _take_pending(self, token: int, room: int) -> Taken:
        if token != self._pending.pop(0):
            raise ValueError(f"token {token} was sampled, another one was forced")
        if self._then == "reason":
            self._follow((token,))
            return Taken((token,), thoughts=1) if self._pending else self._opened((token,), 0, room)
        self._plain += len(self._token_bytes[token])
        if self._pending:
            return self._thought((token,), 0)
        if self._then == "close":
            return Taken((token,), close=Close.SHORT)
        return self._begin_answer((token,), 0, room)

    def _said(self, token: int, room: int) -> Taken:
        if self._answer is None:
            return Taken((token,), stopped=True)
        return self._answer.take(token, room)

    def _follow(self, ids: Iterable[int]) -> None:
        for token in ids:
            self._follower.feed(self._spelt(token))
            self._plain += len(self._token_bytes[token])

    def _spelt(self, token: int) -> bytes:
        return self._reasoning.spelt.get(token) or self._token_bytes[token]


def _runs_over(reasoning: Reasoning, matched: int, piece: bytes) -> bool:
    text = reasoning.end[:matched] + piece
    at = text.find(reasoning.end)
    return at >= 0 and not reasoning.gap.startswith(text[at + len(reasoning.end) :])


def _pack(bits: npt.NDArray[np.bool_]) -> Words:
    return np.packbits(bits, bitorder="little").view(np.int32)


def _set(row: Words, token: int) -> None:
    row.view(np.uint32)[token // 32] |= np.uint32(1 << (token % 32))
