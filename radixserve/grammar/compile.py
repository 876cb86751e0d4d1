"""Compiles constraints off the loop.

Owns: the cache, who waits for what, the children that compile. Must not know: tokens of a request
beyond its matcher, the scheduler.
"""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import xgrammar

from radixserve.errors import InternalError, QueueFull, RequestError, request_error
from radixserve.grammar import worker
from radixserve.grammar.child import Child
from radixserve.grammar.pool import Matcher
from radixserve.grammar.tokens import Tokens
from radixserve.grammar.track import Track
from radixserve.grammar.turns import Turn, Turns
from radixserve.grammar.vocabulary import Vocabulary
from radixserve.wire.params import Constraint

REFUSED_SECONDS = 60.0
LANES = 2  # see turns.py


@dataclass(frozen=True, slots=True)
class Limits:
    """forces: matchers append forced tokens. seconds, mask_seconds: of work, one compilation, one
    mask row. cache_bytes: compiled grammars kept, by their size in memory. answer_bytes: one
    compiled grammar as it crosses from the child. waiting: distinct constraints that somebody may
    wait for. start_seconds: until a child is ready. spare_bytes: what a child may grow by before
    it is replaced.
    """

    forces: bool = True
    seconds: float = 10.0
    mask_seconds: float = 1.0
    cache_bytes: int = 256 * 1024**2
    answer_bytes: int = 128 * 1024**2
    waiting: int = 64
    start_seconds: float = 120.0
    spare_bytes: int = 512 * 1024**2


@dataclass(frozen=True, slots=True)
class _Waiting:
    rid: str
    asker: str
    stop_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    """size: bytes of the serialised grammar, for which the grammar engine takes about as many.
    marks: see wire.params.Constraint."""

    grammar: xgrammar.CompiledGrammar
    track: Track | None
    size: int
    marks: bool


_Outcome = _Kept | RequestError
_Done = tuple[Constraint, _Outcome | None, float]  # None: dropped; seconds that it took


class Compiler:
    """Turns constraints, as `check` returns them, into matchers.

    Equal constraints compile once, also when they arrive together. A failure is kept for
    REFUSED_SECONDS. A child starts with the first constraint, or with warm(); another one while a
    compilation takes long. All verbs are for one thread, the loop's; none of them waits. tokenizer:
    see wire.messages.Setup.

    compiled, hits, seconds: grammars compiled, requests that found theirs, time spent compiling.
    """

    def __init__(
        self, vocabulary: Vocabulary, limits: Limits | None = None, tokenizer: str = ""
    ) -> None:
        self.compiled = 0
        self.hits = 0
        self.seconds = 0.0
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._tokens: dict[bool, Tokens] = {}  # with and without marks
        self._limits = limits or Limits()
        self._kept: OrderedDict[Constraint, _Kept] = OrderedDict()
        self._kept_bytes = 0
        self._waiting: dict[Constraint, list[_Waiting]] = {}
        self._ready: list[tuple[str, Matcher | RequestError]] = []
        self._turns = Turns(LANES, self._limits.seconds, vocabulary.columns)
        self._done: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        self._dropped: set[Constraint] = set()
        self._refused: dict[Constraint, tuple[float, RequestError]] = {}
        self._spelling_lock = threading.Lock()
        setup = self._setup()
        self._children = [
            Child(
                setup,
                start_seconds=self._limits.start_seconds,
                answer_bytes=self._limits.answer_bytes,
            )
            for _ in range(LANES)
        ]
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=f"grammar-{lane}", daemon=True)
            for lane in range(LANES)
        ]
        for thread in self._threads:
            thread.start()

    def warm(self) -> None:
        """Start a child now."""
        self._turns.put(None)

    @property
    def waiting(self) -> int:
        """Requests whose matcher is still to come."""
        return sum(map(len, self._waiting.values())) + len(self._ready)

    def submit(
        self, rid: str, constraint: Constraint, stop_ids: Iterable[int], asker: str = ""
    ) -> None:
        """Ask for a matcher for request `rid`; poll brings it. stop_ids: what ends the request.
        asker: those have turns in rotation. Where too much waits, the newest of the asker with most
        gets QueueFull, which is this one where its asker would have as much."""
        who = _Waiting(rid, asker, tuple(stop_ids))
        if constraint in self._kept:
            self.hits += 1
            self._kept.move_to_end(constraint)
            self._ready.append((rid, self._matcher(self._kept[constraint], who)))
        elif (refusal := self._refusal(constraint)) is not None:
            self._ready.append((rid, refusal))
        elif constraint in self._waiting:
            self.hits += 1
            self._dropped.discard(constraint)
            self._waiting[constraint].append(who)
            self._turns.also(constraint, asker)
        elif not self._has_room(asker):
            self._ready.append((rid, _too_many()))
        else:
            self._waiting[constraint] = [who]
            self._turns.put(constraint, asker)

    def _has_room(self, asker: str) -> bool:
        """For one more of this asker's; made at the cost of who has most, if that is another one.
        What several ask for counts for each of them, so nobody hides behind a second name."""
        if self._count() < self._limits.waiting:
            return True
        counts: Counter[str] = Counter()
        for asked in self._waiting.values():
            counts.update(dict.fromkeys(who.asker for who in asked).keys())
        while self._count() >= self._limits.waiting:
            most = max(counts, key=counts.__getitem__, default=asker)
            if counts[most] <= counts[asker] + 1 or not self._displaced(most):
                return False
            counts[most] -= 1
        return True

    def _count(self) -> int:
        """Constraints that somebody waits for."""
        return sum(map(bool, self._waiting.values()))

    def _displaced(self, asker: str) -> bool:
        """Refuse this asker's newest constraint; False where all of them are under way."""
        for constraint in reversed(self._waiting):
            waiting = self._waiting[constraint]
            refused = [who for who in waiting if who.asker == asker]
            others = [who for who in waiting if who.asker != asker]
            if not refused or (not others and not self._turns.drop(constraint)):
                continue
            if others:
                self._waiting[constraint] = others
            else:
                del self._waiting[constraint]
            self._ready.extend((who.rid, _too_many()) for who in refused)
            return True
        return False

    def _refusal(self, constraint: Constraint) -> RequestError | None:
        """Of a constraint that has failed just now."""
        now = time.monotonic()
        self._refused = {c: kept for c, kept in self._refused.items() if kept[0] > now}
        found = self._refused.get(constraint)
        return None if found is None else found[1]

    def cancel(self, rid: str) -> None:
        """Forget request `rid`. A constraint that nobody waits for any more leaves the queue; where
        it is under way, it is given up, or ends soon."""
        self._ready = [entry for entry in self._ready if entry[0] != rid]
        for constraint, waiting in list(self._waiting.items()):
            waiting[:] = [who for who in waiting if who.rid != rid]
            if waiting:
                continue
            if self._turns.drop(constraint):
                del self._waiting[constraint]
                self._dropped.discard(constraint)
            else:
                self._dropped.add(constraint)
                for child in self._children:
                    child.give_up(constraint)

    def poll(self) -> list[tuple[str, Matcher | RequestError]]:
        """Each request whose matcher, or refusal, has come since the last call."""
        while not self._done.empty():
            constraint, outcome, seconds = self._done.get()
            self.seconds += seconds
            waiting = self._waiting.pop(constraint, [])
            self._dropped.discard(constraint)
            if outcome is None:
                if waiting:  # asked for again while it was being dropped
                    self._waiting[constraint] = waiting
                    self._turns.put(constraint, waiting[0].asker)
            elif isinstance(outcome, RequestError):
                self._refused[constraint] = (time.monotonic() + REFUSED_SECONDS, outcome)
                self._ready.extend((who.rid, outcome) for who in waiting)
            else:
                self.compiled += 1
                self._keep(constraint, outcome)
                self._ready.extend((who.rid, self._matcher(outcome, who)) for who in waiting)
        found, self._ready = self._ready, []
        return found

    def close(self) -> None:
        """End the children; nothing more comes."""
        self._turns.close()
        for child in self._children:
            child.kill()
        for thread, child in zip(self._threads, self._children):
            thread.join()
            child.bury()

    def _setup(self) -> bytes:
        vocabulary = self._vocabulary
        setup = worker.Setup(
            token_bytes=vocabulary.token_bytes,
            stop_ids=list(vocabulary.stop_ids),
            columns=vocabulary.columns,
            spare_bytes=self._limits.spare_bytes,
        )
        return msgspec.msgpack.encode(setup)

    def _matcher(self, kept: _Kept, who: _Waiting) -> Matcher:
        return Matcher(
            kept.grammar,
            self._vocabulary,
            who.stop_ids,
            kept.track,
            self._tokens[kept.marks],
            mask_seconds=self._limits.mask_seconds,
            forces=self._limits.forces,
        )

    def _spelling(self, marks: bool) -> Tokens:
        vocabulary = self._vocabulary
        ordinary = vocabulary.ordinary_ids(marks=marks)
        spelt = vocabulary.marks if marks else None
        return Tokens(vocabulary.token_bytes, ordinary, self._tokenizer, spelt)

    def _keep(self, constraint: Constraint, kept: _Kept) -> None:
        if kept.size > self._limits.cache_bytes:
            return
        self._kept[constraint] = kept
        self._kept_bytes += kept.size
        while self._kept_bytes > self._limits.cache_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= dropped.size

    def _work(self, lane: int) -> None:
        child = self._children[lane]
        while (turn := self._turns.take(lane, warm=child.is_running)) != "end":
            if turn == "rest":
                child.bury()
                continue
            if turn.constraint is None:
                child.start()
            else:
                self._compile(child, turn, turn.constraint)
            self._turns.done(lane)

    def _compile(self, child: Child, turn: Turn, constraint: Constraint) -> None:
        if constraint in self._dropped:
            self._done.put((constraint, None, 0.0))
            return
        with self._spelling_lock:
            if constraint.marks not in self._tokens:
                self._tokens[constraint.marks] = self._spelling(constraint.marks)
        began = time.monotonic()
        outcome = self._outcome(child, turn, constraint)
        if not turn.comes_again:
            self._done.put((constraint, outcome, time.monotonic() - began))

    def _outcome(self, child: Child, turn: Turn, constraint: Constraint) -> _Outcome | None:
        answer = child.ask(turn)
        if answer is None or isinstance(answer, RequestError):
            return answer
        if isinstance(answer, worker.Failed):
            return request_error(answer.code, answer.message, answer.param)
        try:
            found = xgrammar.CompiledGrammar.deserialize_json(answer.grammar, self._vocabulary.info)
        except (RuntimeError, ValueError) as error:
            return InternalError(f"a compiled grammar cannot be read: {error}")
        track = Track.of(pickle.loads(answer.rules))  # our own child wrote it
        return _Kept(found, track, len(answer.grammar), constraint.marks)


def _too_many() -> QueueFull:
    return QueueFull("too many grammars wait to be compiled")
