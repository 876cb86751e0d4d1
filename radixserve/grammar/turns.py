"""Which constraint is compiled next, and beside what.

Owns: the queue of constraints, what is under way in which lane. Must not know: how a constraint is
compiled, who waits for it.

One constraint is compiled at a time, as long as that takes less than LONG seconds. One that takes
longer stays under way, and another lane goes on with the queue. While it does, others that turn out
to be long are stopped, where something waits behind them, and come later. So an ordinary constraint
waits for LONG seconds at most for each hard one before it, however long those take, and for the
start of another process, which ended with the one that was stopped.

Who asks is a namespace of the cache, and all who ask have turns in rotation. So a constraint waits
for those of its own namespace that came before it, and for as many of each other one at most.

Seconds are those of the compiling process's own work, so that a busy machine makes no constraint a
long one; they may take PATIENCE times as long by the clock.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from typing import Literal

from radixserve.wire.params import Constraint

LONG = 0.5  # seconds; the schemas of benchmarks/schemas.py take 0.25 on SmolLM2, 0.65 at most
PATIENCE = 4.0
LOOK = 0.05  # seconds between looks at whether something waits
IDLE = 60.0  # seconds after which a lane that another can stand in for ends its process


class Turn:
    """One constraint under way; None: a process is to be started, whose seconds are the clock's.
    seconds: it may take. turns: decides what happens when it turns out to be long.

    is_over: it has had all its time. comes_again: it was stopped for others and is still to be
    compiled.
    """

    def __init__(
        self,
        constraint: Constraint | None,
        seconds: float,
        turns: Turns | None = None,
        *,
        is_long: bool = False,
    ) -> None:
        self.constraint = constraint
        self.seconds = seconds
        self.is_long = is_long
        self.is_over = False
        self.comes_again = False
        self._turns = turns
        self._began = time.monotonic()

    def begin(self) -> None:
        """Its time counts from now."""
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def left(self, worked: float = 0.0) -> float:
        """Seconds until this has to be asked again; none: it must stop now. worked: seconds."""
        if self._turns is None:
            rest = self.seconds - self.elapsed
        else:
            rest = min(self.seconds - worked, PATIENCE * self.seconds - self.elapsed)
        self.is_over = rest <= 0
        if self._turns is None or self.is_over:
            return rest
        return min(max(rest, LOOK), self._turns.more(self, worked))


class _Rotation:
    """Constraints by who asks for them, in the order in which it is their turn."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[Constraint | None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def append(self, constraint: Constraint | None, asker: str) -> None:
        self._queues.setdefault(asker, deque()).append(constraint)

    def pop(self) -> Constraint | None:
        asker, queue = self._queues.popitem(last=False)
        found = queue.popleft()
        if queue:
            self._queues[asker] = queue  # behind all others
        return found

    def remove(self, constraint: Constraint) -> bool:
        """Take it out; False where it is not here."""
        for asker, queue in self._queues.items():
            if constraint in queue:
                queue.remove(constraint)
                if not queue:
                    del self._queues[asker]
                return True
        return False

    def share(self, constraint: Constraint, asker: str) -> None:
        """Move it to another one's queue, where that is the shorter way."""
        mine = len(self._queues.get(asker, ()))
        for other, queue in self._queues.items():
            if constraint in queue:
                if other != asker and mine < queue.index(constraint):
                    queue.remove(constraint)  # not the only one there
                    self.append(constraint, asker)
                return


class Turns:
    """The queue of `lanes` threads that compile. seconds: that one constraint may take. size: of
    the vocabulary, with which all of them take longer.

    put, also, drop, close: for any thread; take and done for each lane's own.
    """

    def __init__(self, lanes: int, seconds: float, size: int = 0) -> None:
        self._seconds = seconds
        self._long = LONG * max(1.0, size / 50_000)
        self._changed = threading.Condition()
        self._under_way: list[Turn | None] = [None] * lanes
        self._warm = [False] * lanes  # lanes that wait and have a process
        self._new = _Rotation()
        self._late: deque[Constraint] = deque()
        self._is_closed = False

    def put(self, constraint: Constraint | None, asker: str = "") -> None:
        """Queue a constraint for who asks; None: the start of a process."""
        with self._changed:
            self._new.append(constraint, asker)
            self._changed.notify_all()

    def also(self, constraint: Constraint, asker: str) -> None:
        """Another one asks for what has been put: where it still waits, it comes no later than if
        this one had put it."""
        with self._changed:
            self._new.share(constraint, asker)

    def drop(self, constraint: Constraint) -> bool:
        """Take a constraint out, also one that was stopped for others; False where it is under way
        or has been compiled."""
        with self._changed:
            if constraint in self._late:
                self._late.remove(constraint)
                return True
            return self._new.remove(constraint)

    def take(self, lane: int, *, warm: bool) -> Turn | Literal["rest", "end"]:
        """Wait for a turn. warm: the lane has a process.

        rest: the lane should end its process, which nothing has needed for IDLE seconds. end: the
        queue is closed.
        """
        with self._changed:
            self._warm[lane] = warm
            self._changed.notify_all()  # one that waits for this one, which may be the better
            until = time.monotonic() + IDLE
            while not self._is_closed:
                turn = self._next(lane)
                if turn is not None:
                    self._warm[lane] = False
                    self._under_way[lane] = turn
                    return turn
                left = until - time.monotonic()
                if left > 0 or not self._is_spare(lane):
                    self._changed.wait(left if left > 0 else None)
                    continue
                self._warm[lane] = False
                return "rest"
            return "end"

    def done(self, lane: int) -> None:
        """The lane's turn is over."""
        with self._changed:
            turn, self._under_way[lane] = self._under_way[lane], None
            if turn is not None and turn.comes_again and turn.constraint is not None:
                self._late.append(turn.constraint)
            self._changed.notify_all()

    def more(self, turn: Turn, worked: float) -> float:
        """Seconds until a turn has to ask again; none: others go first."""
        if turn.is_long:
            return self._seconds
        if worked < self._long:
            return max(LOOK, self._long - worked)
        with self._changed:
            if not any(each.is_long for each in self._under_way if each is not None):
                turn.is_long = True
                if not self._new and not any(self._warm):
                    self._new.append(None, "")  # a process for whatever comes next
                self._changed.notify_all()
                return self._seconds
            if self._new:
                turn.comes_again = True
                return 0.0
        return LOOK

    def close(self) -> None:
        """Nothing is handed out any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _next(self, lane: int) -> Turn | None:
        if any(self._is_better(other, lane) for other in range(len(self._warm))):
            return None
        under_way = [turn for turn in self._under_way if turn is not None]
        if self._new and all(turn.is_long for turn in under_way):
            return Turn(self._new.pop(), self._seconds, self)
        if self._late and not any(turn.is_long for turn in under_way):
            return Turn(self._late.popleft(), self._seconds, self, is_long=True)
        return None

    def _is_better(self, other: int, lane: int) -> bool:
        """Whether the other one waits too, with a process at hand."""
        return self._warm[other] and (other < lane or not self._warm[lane])

    def _is_spare(self, lane: int) -> bool:
        return self._warm[lane] and any(w for i, w in enumerate(self._warm) if i != lane)
