"""A matcher for each constrained request.

Owns: where a request stands in its grammar, mask rows, what is forced, how an output that runs out
of room ends. Must not know: how grammars are compiled, logits, the queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np
import xgrammar

from radixserve.errors import InternalError, InvalidRequest, RequestError
from radixserve.grammar.refusal import CODE
from radixserve.grammar.tokens import Tokens
from radixserve.grammar.track import State, Track
from radixserve.grammar.vocabulary import Vocabulary, Words
from radixserve.guide import Close, Taken

STEPS_ALONE = 32
STEPS_TOGETHER = 4
THREADS_COST = 0.002  # seconds; measured: threads take 0.3 ms alone, 2 ms beside those of the model
MAX_ENDING_BYTES = 2**16  # of a shortest ending; one that is longer must fit byte by byte


class Matcher:
    """One output under one grammar; a guide.Guide.

    stop_ids: the ids that may end this request. They are masked until the grammar may end, unless
    nothing else can continue the text; the vocabulary's other stop ids always are. track, tokens:
    follow the output to its shortest ending and to what is forced; without them (grammars that only
    xgrammar can follow) nothing is forced, and an output that runs out of room is left unfinished.
    mask_seconds: of work, the most that one mask row may take. forces: without it tokens are
    sampled also where there is no choice.
    """

    def __init__(
        self,
        compiled: xgrammar.CompiledGrammar,
        vocabulary: Vocabulary,
        stop_ids: Iterable[int],
        track: Track | None = None,
        tokens: Tokens | None = None,
        *,
        mask_seconds: float = float("inf"),
        forces: bool = True,
    ) -> None:
        own = [token for token in stop_ids if 0 <= token < vocabulary.columns]
        self._vocabulary = vocabulary
        self._compiled = compiled
        self._stops = frozenset(own)
        self._stop_row = vocabulary.row_of(own)
        self._ordinary = vocabulary.ordinary(own, marks=tokens is not None and tokens.has_marks)
        self.state = xgrammar.GrammarMatcher(compiled)
        self._row: Words = np.zeros(vocabulary.words, np.int32)
        self._is_filled = False
        self._ended = False
        self._start = track.start if track is not None and tokens is not None else None
        self._at = self._start
        self._tokens = tokens
        self._text = bytearray()
        self._controls: list[tuple[int, int]] = []  # bytes of other tokens before one, its own
        self._pending: list[int] = []  # must come next, one by one
        self._is_closing = False
        self._one_by_one = False
        self._forces = forces
        self._mask_seconds = mask_seconds
        self._failure: RequestError | None = None

    # ---- an output, token by token ----

    def begin(self, room: int, *, one_by_one: bool) -> Taken:
        """What stands at the beginning without sampling. room: most tokens of the output.

        one_by_one: every token is sampled, forced ones under a mask that allows nothing else, so
        that each has its log-probability. Raises InvalidRequest when no output fits the room.
        """
        self._one_by_one = one_by_one
        if not self._fits(self._at, room):
            raise InvalidRequest(
                f"the shortest output that the constraint allows takes {self.least()} tokens, "
                f"there is room for {room}",
                param="max_new_tokens",
            )
        return self._onward([], room)

    def begin_free(self, *, one_by_one: bool) -> None:
        """Begin with a sampled token, whatever is forced; see begin()."""
        self._one_by_one = one_by_one

    def restart(self) -> None:
        """Forget the output so far."""
        self.state = xgrammar.GrammarMatcher(self._compiled)
        self._at = self._start
        self._text.clear()
        self._controls.clear()
        self._pending = []
        self._is_filled = self._ended = False

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""
        return bool(int(self._current()[token // 32]) >> (token % 32) & 1)

    def fits(self, room: int) -> bool:
        """Whether an ending from here is known to fit `room` tokens, or none is known."""
        return room >= 0 and self._fits(self._at, room)

    def fits_afresh(self, room: int) -> bool:
        """The same from the beginning."""
        return room >= 0 and self._fits(self._start, room)

    def shortest(self) -> list[int] | None:
        """The tokens of the shortest ending from here; None where none is known."""
        return self._ending(self._at)

    def least(self) -> str:
        """The tokens of the shortest output; of a very long one, a bound."""
        assert self._at is not None
        assert self._at.needs is not None
        assert self._tokens is not None
        if self._at.needs > MAX_ENDING_BYTES:
            return f"at least {self._at.needs // self._tokens.longest_token}"
        return str(len(self._tokens.ending(self._at) or ()))

    def take(self, token: int, room: int) -> Taken:
        """Move on by a token that the last mask row allowed; room: tokens that may follow it.

        A token behind which no ending fits the room is not taken: the shortest ending stands in its
        place. Raises ValueError for a token that the grammar does not allow.
        """
        if self._failure is not None:
            return Taken((), error=self._failure)
        if self._pending:
            return self._take_pending(token, room)
        if token in self._stops and (self.finished or token in self._vocabulary.stop_ids):
            if not self.finished:
                raise ValueError(f"stop id {token} before the grammar may end")
            self._ended = True
            self._is_filled = False
            return Taken((token,), close=Close.WHOLE, stopped=True)
        before, after = self._at, self._walked(self._at, (token,))
        if before is not None and not self._fits(after, room):
            ending = self._ending(before)
            if ending is not None:  # else no tokens spell it, and nothing better is known
                return self._close(ending)
        self._accept((token,), after)
        return self._onward([token], room)

    def whole_at(self, size: int) -> bool:
        """Whether the output is whole behind its first `size` bytes, not counting those of control
        tokens; such tokens at the cut are before it."""
        size += sum(own for before, own in self._controls if before <= size)
        text = bytes(self._text[:size])
        if self._start is not None:
            state = self._start.walk(text)
            if state is None or not state.lost:
                return state is not None and state.may_end
        fresh = xgrammar.GrammarMatcher(self._compiled)
        return bool(fresh.accept_string(text)) and bool(fresh.is_completed())

    @property
    def finished(self) -> bool:
        """What has been accepted is a whole output: a stop id may follow."""
        return self._ended or bool(self.state.is_completed())

    @property
    def must_end(self) -> bool:
        """Only a stop id may follow."""
        if not self.finished:
            return False
        if self._at is not None and not self._at.lost:
            return self._at.must_end
        return not (self._current() & self._ordinary).any()

    # ---- masks ----

    @property
    def row_words(self) -> int:
        """int32 words in a mask row."""
        return self._vocabulary.words

    def fill(self, mask_row: Words) -> None:
        """Write the ids that may come next. mask_row: int32 [ceil(columns / 32)], a set bit
        allows. Never empty: where nothing can follow, take() says so."""
        mask_row[:] = self._current()

    @property
    def is_stale(self) -> bool:
        """The grammar engine must be asked for the next row."""
        return not (self._is_filled or self._ended or self._pending)

    def _current(self) -> Words:
        if self._pending:
            return self._vocabulary.row_of(self._pending[:1])
        if not self._is_filled:
            self._row[:] = 0
            if not self._ended:
                # Of this thread alone: a machine that is busy elsewhere is no fault of the grammar.
                began = time.thread_time()
                self.state.fill_next_token_bitmask(self._row.reshape(1, -1))
                self.timed(time.thread_time() - began)
            self.settle(self._row)
        return self._row

    def timed(self, seconds: float) -> None:
        """A row took so long; one above the limit ends the request."""
        if seconds > self._mask_seconds:
            self._failure = InvalidRequest(
                f"finding the next tokens under this grammar took {seconds:.2f} s, "
                f"{self._mask_seconds:g} s are possible",
                code=CODE,
            )

    def settle(self, row: Words) -> None:
        """Take a row as the grammar engine filled it; out goes what is never legal, in go the
        stops."""
        raw = row.copy() if row is self._row else row
        np.bitwise_and(raw, self._ordinary, out=self._row)
        if self.finished:
            self._row |= self._stop_row
        elif not self._row.any():  # only the request's own stop ids can continue the text
            np.bitwise_and(raw, self._vocabulary.ordinary(), out=self._row)
        if not self._row.any():
            self._failure = InternalError("no token of this vocabulary can continue the grammar")
            self._row |= self._ordinary  # whatever is drawn, take() tells of the failure
        self._is_filled = True

    # ---- inside ----

    def _walked(self, state: State | None, ids: Sequence[int]) -> State | None:
        for token in ids:
            if state is None or state.lost:
                return None
            state = state.walk(self._vocabulary.token_bytes[token])
        return None if state is None or state.lost else state

    def _ending(self, state: State | None) -> list[int] | None:
        if state is None or self._tokens is None or state.lost:
            return None
        return self._tokens.ending(state)

    def _fits(self, state: State | None, room: int) -> bool:
        """Whether an ending is known to fit; where none is known any output does."""
        if state is None or state.needs is None:
            return True
        if state.needs <= room and self._vocabulary.spells_bytes:
            return True
        assert self._tokens is not None
        if state.needs > min(MAX_ENDING_BYTES, room * self._tokens.longest_token):
            return False
        ending = self._ending(state)
        return ending is None or len(ending) <= room

    def _accept(self, ids: Sequence[int], after: State | None) -> None:
        for token in ids:
            if self._ended or not self.state.accept_token(token):
                raise ValueError(f"token {token} is not allowed by the grammar here")
            text = self._vocabulary.token_bytes[token]
            if token in self._vocabulary.controls:
                others = len(self._text) - sum(own for _, own in self._controls)
                self._controls.append((others, len(text)))
            self._text += text
        self._at = after
        self._is_filled = False

    def _onward(self, ids: list[int], room: int) -> Taken:
        """Behind accepted `ids`: what is forced from here, and whether the output has ended."""
        forced: list[int] = []
        if self._forces and self._at is not None and self._tokens is not None:
            forced, after = self._tokens.forced(self._at)
            if len(forced) > room or not self._fits(after, room - len(forced)):
                forced = []
            elif forced and self._one_by_one:
                self._pending, forced = forced, []
            else:
                self._accept(forced, after)
        if not self._pending and self.must_end:
            return Taken((*ids, *forced), len(forced), Close.WHOLE)
        return Taken((*ids, *forced), len(forced))

    def _close(self, ending: list[int]) -> Taken:
        """The shortest ending, here and now."""
        if not self._one_by_one or not ending:
            return Taken(tuple(ending), len(ending), Close.SHORT)
        self._pending = ending
        self._is_closing = True
        return Taken((), again=True)

    def _take_pending(self, token: int, room: int) -> Taken:
        if token != self._pending.pop(0):
            raise ValueError(f"token {token} was sampled, another one was forced")
        self._accept((token,), self._walked(self._at, (token,)))
        if self._pending:
            return Taken((token,))
        if self._is_closing:
            return Taken((token,), close=Close.SHORT)
        return self._onward([token], room)


class RowFiller:
    """Fills the mask rows of a batch: one by one, which takes a few microseconds each, or, where
    the last step took longer than handing them out does, in native threads.

    slow: a batch that takes longer, in seconds, is followed by steps that fill row by row, so that
    the matcher whose rows take long is found by its own limit.
    """

    def __init__(self, vocabulary: Vocabulary, threads: int, slow: float) -> None:
        self._vocabulary = vocabulary
        self._native = xgrammar.BatchGrammarMatcher(max_threads=threads) if threads > 1 else None
        self._slow = slow
        self._together = 0  # steps to fill in threads
        self._alone = 0  # steps to fill row by row

    def rows(self, matchers: Sequence[Matcher | None]) -> Words:
        """Row i for matcher i, all ids where there is none: int32 [n, ceil(columns / 32)]."""
        rows = np.full((len(matchers), self._vocabulary.words), -1, np.int32)
        stale = [m for m in matchers if m is not None and m.is_stale]
        self._alone = max(0, self._alone - 1)
        self._together = max(0, self._together - 1)
        if self._native is not None and len(stale) > 1 and self._together and not self._alone:
            self._fill_together(self._native, stale)
        began = time.perf_counter()
        for matcher, row in zip(matchers, rows):
            if matcher is not None:
                matcher.fill(row)
        if time.perf_counter() - began > THREADS_COST:
            self._together = STEPS_TOGETHER
        return rows

    def _fill_together(self, native: xgrammar.BatchGrammarMatcher, stale: list[Matcher]) -> None:
        block = np.zeros((len(stale), self._vocabulary.words), np.int32)
        began = time.perf_counter()
        native.batch_fill_next_token_bitmask([matcher.state for matcher in stale], block)
        if time.perf_counter() - began > self._slow:
            self._alone = STEPS_ALONE
        for matcher, row in zip(stale, block):
            matcher.settle(row)
