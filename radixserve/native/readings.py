"""The reading of constraints, in turns.

Owns: the two threads that read, which constraint is next, what became of the latest ones. Must not
know: wishes, calls, what a constraint says.

One constraint takes a millisecond, another a second, and nobody knows before. So each is read with
few steps first; where these do not do, it is read again with FACTOR times as many, behind all that
have had fewer. For each other one that waits, a constraint therefore waits no longer than some
times what it takes itself, whatever the others take. Long turns have a thread of their own, and
every other one of them goes to the constraint that came first, so that none waits for ever.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from radixserve.errors import InvalidRequest
from radixserve.grammar import effort
from radixserve.wire.params import Constraint

FIRST = 4_000  # steps: see grammar/effort.py
FACTOR = 4
QUICK = 3  # turns in the thread of the short ones
LEVELS = 6  # the last has no limit but those of the work itself
MAX_KEPT = 64

Work = Callable[[Constraint], Constraint]
_Key = tuple[Work, Constraint]


class _Reading:
    """One constraint to be read. number: in the order in which they came. level: turns that it has
    had. waiting: how many want it."""

    __slots__ = ("future", "key", "level", "number", "waiting")

    def __init__(self, key: _Key, number: int) -> None:
        self.key = key
        self.number = number
        self.level = 0
        self.waiting = 0
        self.future: Future[Constraint] = Future()


class _Kept:
    """The latest outcomes."""

    def __init__(self) -> None:
        self._found: OrderedDict[_Key, Constraint | InvalidRequest] = OrderedDict()

    def get(self, key: _Key) -> Constraint | InvalidRequest | None:
        if key in self._found:
            self._found.move_to_end(key)
        return self._found.get(key)

    def put(self, key: _Key, outcome: Constraint | InvalidRequest) -> None:
        self._found[key] = outcome
        if len(self._found) > MAX_KEPT:
            self._found.popitem(last=False)


class Readings:
    """Reads constraints for any thread's event loop. Refusals are kept as well as what was read,
    and apart from it, so that many of the one do not push out the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._good = _Kept()
        self._bad = _Kept()
        self._readings: dict[_Key, _Reading] = {}
        self._waiting: tuple[list[_Reading], list[_Reading]] = ([], [])  # short, long turns
        self._is_busy = [False, False]
        self._is_turn_of_first = False
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix=f"grammar-check-{name}")
            for name in ("short", "long")
        ]

    async def found(self, work: Work, constraint: Constraint) -> Constraint:
        """work(constraint), done in a thread, once for all who ask for it meanwhile or a while
        after; what nobody waits for any more is dropped. Raises what `work` raises."""
        key = (work, constraint)
        with self._lock:
            known = self._good.get(key) or self._bad.get(key)
            if isinstance(known, Constraint):
                return known
            if known is None:
                reading = self._reading(key)
                reading.waiting += 1
        if known is not None:
            raise known.with_traceback(None)
        self._go_on(0)
        try:
            # Shielded: one who leaves does not take it from the others.
            return await asyncio.shield(asyncio.wrap_future(reading.future))
        finally:
            with self._lock:
                reading.waiting -= 1

    def _reading(self, key: _Key) -> _Reading:
        if key not in self._readings:
            self._count += 1
            self._readings[key] = _Reading(key, self._count)
            self._waiting[0].append(self._readings[key])
        return self._readings[key]

    def _go_on(self, lane: int) -> None:
        """Have the lane's thread read the next one, if it has nothing to do."""
        with self._lock:
            if self._is_busy[lane]:
                return
            reading = self._next(lane)
            if reading is None:
                return
            self._is_busy[lane] = True
        try:
            turn = self._threads[lane].submit(_read, reading)
        except RuntimeError:  # the interpreter ends, and whoever waits with it
            return
        turn.add_done_callback(lambda done: self._ended(lane, reading, done))

    def _next(self, lane: int) -> _Reading | None:
        waiting = self._waiting[lane]
        for left in [each for each in waiting if not each.waiting]:
            waiting.remove(left)
            del self._readings[left.key]
            left.future.cancel()
        if not waiting:
            return None
        if lane == 1:
            self._is_turn_of_first = not self._is_turn_of_first
        by_level = lane == 0 or not self._is_turn_of_first
        found = min(waiting, key=lambda each: (each.level if by_level else 0, each.number))
        waiting.remove(found)
        return found

    def _ended(self, lane: int, reading: _Reading, turn: Future[Constraint]) -> None:
        error = turn.exception()
        with self._lock:
            self._is_busy[lane] = False
            if isinstance(error, effort.Exhausted):
                reading.level += 1
                self._waiting[reading.level >= QUICK].append(reading)
            else:
                del self._readings[reading.key]
                self._keep(reading.key, turn)
        if isinstance(error, effort.Exhausted):
            self._go_on(1)
        elif error is not None:
            reading.future.set_exception(error)
        else:
            reading.future.set_result(turn.result())
        self._go_on(lane)

    def _keep(self, key: _Key, turn: Future[Constraint]) -> None:
        error = turn.exception()
        if error is None:
            self._good.put(key, turn.result())
        elif isinstance(error, InvalidRequest):
            error.__cause__ = error.__context__ = None  # they hold all that was read
            self._bad.put(key, error)


def _read(reading: _Reading) -> Constraint:
    work, constraint = reading.key
    if reading.level == LEVELS - 1:
        return work(constraint)
    with effort.limited(FIRST * FACTOR**reading.level):
        return work(constraint)
