"""Compiles constraints off the loop.

Owns: the child that compiles, its time limit, the cache, who waits for what. Must not know: tokens
of a request beyond its matcher, the scheduler.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec
import xgrammar

from radixserve.errors import InternalError, InvalidRequest, QueueFull, RequestError, request_error
from radixserve.grammar import worker
from radixserve.grammar.pool import Matcher
from radixserve.grammar.refusal import CODE
from radixserve.grammar.tokens import Tokens
from radixserve.grammar.track import Track
from radixserve.grammar.vocabulary import Vocabulary
from radixserve.log import logger
from radixserve.wire.params import Constraint

REFUSED_SECONDS = 60.0
WORTH_GIVING_UP = 2.0  # seconds of work after which a new child costs less than what is left


@dataclass(frozen=True, slots=True)
class Limits:
    """forces: matchers append forced tokens. seconds: one compilation. mask_seconds: one mask row.
    cache_bytes: compiled grammars kept, by their size in memory. answer_bytes: one compiled grammar
    as it crosses from the child. waiting: distinct constraints that may wait. start_seconds: until
    a child is ready. spare_bytes: what a child may grow by before it is replaced.
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


class Compiler:
    """Turns constraints, as `check` returns them, into matchers.

    Equal constraints compile once, also when they arrive together. A failure is kept for
    REFUSED_SECONDS. The child starts with the first constraint, or with warm(). All verbs are for
    one thread, the loop's; none of them waits. tokenizer: see wire.messages.Setup.

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
        self._jobs: queue.SimpleQueue[Constraint | Literal["warm"] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Constraint, _Outcome | None]] = queue.SimpleQueue()
        self._dropped: set[Constraint] = set()
        self._refused: dict[Constraint, tuple[float, RequestError]] = {}
        self._child = _Child(vocabulary, self._limits)
        self._thread = threading.Thread(target=self._work, name="grammar", daemon=True)
        self._thread.start()

    def warm(self) -> None:
        """Start the child now, which takes seconds."""
        self._jobs.put("warm")

    @property
    def waiting(self) -> int:
        """Requests whose matcher is still to come."""
        return sum(map(len, self._waiting.values())) + len(self._ready)

    def submit(self, rid: str, constraint: Constraint, stop_ids: Iterable[int]) -> None:
        """Ask for a matcher for request `rid`; poll brings it. stop_ids: what ends the request."""
        who = _Waiting(rid, tuple(stop_ids))
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
        elif len(self._waiting) >= self._limits.waiting:
            self._ready.append((rid, QueueFull("too many grammars wait to be compiled")))
        else:
            self._waiting[constraint] = [who]
            self._dropped.discard(constraint)
            self._jobs.put(constraint)

    def _refusal(self, constraint: Constraint) -> RequestError | None:
        """Of a constraint that has failed just now."""
        now = time.monotonic()
        self._refused = {c: kept for c, kept in self._refused.items() if kept[0] > now}
        found = self._refused.get(constraint)
        return None if found is None else found[1]

    def cancel(self, rid: str) -> None:
        """Forget request `rid`. A compilation that nobody waits for any more is given up, or ends
        soon."""
        self._ready = [entry for entry in self._ready if entry[0] != rid]
        for constraint, waiting in self._waiting.items():
            waiting[:] = [who for who in waiting if who.rid != rid]
            if not waiting:
                self._dropped.add(constraint)
                self._child.give_up(constraint)

    def poll(self) -> list[tuple[str, Matcher | RequestError]]:
        """Each request whose matcher, or refusal, has come since the last call."""
        while not self._done.empty():
            constraint, outcome = self._done.get()
            waiting = self._waiting.pop(constraint, [])
            if outcome is None and waiting:  # asked for again while it was being dropped
                self._waiting[constraint] = waiting
                self._jobs.put(constraint)
            elif outcome is None:
                self._dropped.discard(constraint)
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
        """End the child; nothing more comes."""
        self._jobs.put(None)
        self._child.kill()
        self._thread.join()
        self._child.bury()

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

    def _work(self) -> None:
        while (constraint := self._jobs.get()) is not None:
            if constraint == "warm":
                self._child.start()
                continue
            if constraint in self._dropped:
                self._done.put((constraint, None))
                continue
            if constraint.marks not in self._tokens:
                self._tokens[constraint.marks] = self._spelling(constraint.marks)
            began = time.monotonic()
            outcome = self._outcome(constraint)
            self.seconds += time.monotonic() - began
            self._done.put((constraint, outcome))

    def _outcome(self, constraint: Constraint) -> _Outcome | None:
        answer = self._child.ask(constraint)
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


class _Child:
    """The process that compiles. A call that finds it dead starts another."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits) -> None:
        self._limits = limits
        self._setup = msgspec.msgpack.encode(
            worker.Setup(
                token_bytes=vocabulary.token_bytes,
                stop_ids=list(vocabulary.stop_ids),
                columns=vocabulary.columns,
                spare_bytes=limits.spare_bytes,
            )
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._job: tuple[Constraint, float] | None = None  # under way, since when
        self._is_given_up = False
        self._lock = threading.Lock()
        self._is_closed = False

    def start(self) -> bool:
        """Have a ready child; says whether there is one."""
        with self._lock:
            if self._is_closed:
                return False
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "radixserve.grammar.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            else:
                return True
        ready = self._exchange(self._setup, self._limits.start_seconds)
        return ready is not None

    def give_up(self, constraint: Constraint) -> None:
        """End the child if it is at work on this one for a while; from any thread."""
        with self._lock:
            job, process = self._job, self._process
            if job is None or process is None or job[0] != constraint:
                return
            if time.monotonic() - job[1] > WORTH_GIVING_UP:
                self._is_given_up = True
                process.kill()

    def ask(self, constraint: Constraint) -> worker.Answer | RequestError | None:
        """The child's answer, or why there is none; None when it was given up.

        A child may have ended for reasons of its own, so a death is asked about a second time.
        """
        for _ in range(2):
            if not self.start():
                return InternalError("the process that compiles grammars does not start")
            began = time.monotonic()
            with self._lock:
                self._job, self._is_given_up = (constraint, began), False
            body = self._exchange(msgspec.msgpack.encode(constraint), self._limits.seconds)
            with self._lock:
                self._job = None
            if body is None and self._is_given_up:
                return None
            if body is not None:
                answer = msgspec.msgpack.decode(body, type=worker.Answer)
                if answer.is_last:
                    self.bury()
                return answer
            if time.monotonic() - began >= self._limits.seconds:
                return _given_up(constraint, f"takes longer than {self._limits.seconds:g} s")
        return _given_up(constraint, "ends the process that does it")

    def kill(self) -> None:
        """End the child, from any thread; there will be no other."""
        with self._lock:
            self._is_closed = True
            process = self._process
        if process is not None:
            process.kill()

    def bury(self) -> None:
        """Free what a child that has ended or failed still holds."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not written any more is lost
                    pipe.close()
        process.wait()

    def _exchange(self, body: bytes, seconds: float) -> bytes | None:
        """Send one message and wait for one; a child that does not answer is ended."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = time.monotonic() + seconds
        try:
            worker.send(process.stdin, body)  # type: ignore[arg-type]
            answer = self._read(process.stdout.fileno(), deadline)
        except OSError:
            answer = None
        if answer is None:
            self.bury()
        return answer

    def _read(self, fd: int, deadline: float) -> bytes | None:
        data = bytearray()
        size: int | None = None
        while size is None or len(data) < size:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                return None
            chunk = os.read(fd, 1 << 20)
            if not chunk:
                return None
            data += chunk
            if size is None and len(data) >= worker.HEAD:
                size = worker.HEAD + worker.size_of(bytes(data[: worker.HEAD]))
                if size > self._limits.answer_bytes:
                    return None
        return bytes(data[worker.HEAD :])


def _given_up(constraint: Constraint, why: str) -> InvalidRequest:
    logger.warning("a grammar was given up: compiling it %s", why)
    return InvalidRequest(f"compiling it {why}", param=constraint.kind, code=CODE)
