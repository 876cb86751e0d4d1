"""A branch: one interpreter, the queue of its operations, and everyone who waits for a value.

Owns: the order of operations, the failure of a branch, and when a wait ends. Must not know: how
calls are made, what operations do, in which thread or on which loop its driver works.

Operations that need no call are done as they are appended. The first that needs one makes the
driver work the queue off, by pump() in some thread or apump() on a loop. Waits end when the value
is there, when the branch has failed, or when nothing that could still produce it is left. `outside`
readers (of a streamed run) also wait for the program to append more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from radixserve.lang.calls import Call, cancelled
from radixserve.lang.errors import ProgramError
from radixserve.lang.interpreter import Interpreter
from radixserve.lang.ir import Assign, Note, Op, variable
from radixserve.lang.roles import Roles
from radixserve.lang.waiting import Changes

OnChunk = Callable[[dict[str, Any]], None]
Perform = Callable[[Call, OnChunk], Any]
APerform = Callable[[Call, OnChunk], Awaitable[Any]]


class Driver(Protocol):
    """Works branches off."""

    def start(self, branch: Branch) -> None:
        """Have the branch's pump() or apump() run. Called when it has a call to make."""
        ...

    def would_block(self) -> bool:
        """Whether a wait in this thread would keep the driver from working."""
        ...


class Failure:
    """Why a branch failed. was_seen: someone has been handed the error. is_wanted: the program
    itself ended the branch, so nobody needs to be.
    """

    def __init__(self, error: BaseException, is_wanted: bool = False) -> None:
        self.error = error
        self.was_seen = self.is_wanted = is_wanted

    def reveal(self) -> NoReturn:
        self.was_seen = True
        raise self.error


@dataclass(frozen=True, slots=True)
class Split:
    """Where in its parent's queue the children of a fork begin."""

    children: tuple[Branch, ...]


class Branch:
    """parent: the branch that this one is forked from; it begins with begin()."""

    def __init__(
        self, interpreter: Interpreter, driver: Driver, parent: Branch | None = None
    ) -> None:
        self.interpreter = interpreter
        self.driver = driver
        self.failure: Failure | None = None
        self.parent = parent
        self.changed = Changes(driver.would_block)
        self._result: Any = None
        self._verdict: Failure | None = None
        self._queue: deque[Op | Split] = deque()
        self._doing: Op | None = None
        self._steps: Generator[Call, Any, None] | None = None
        self._call: Call | None = None
        self._has_begun = parent is None
        self._is_pumping = False
        self._has_ended = False
        self._lost: set[str] = set()
        self._roles: Roles = parent._roles if parent else Roles()

    # ---- appending ----

    def submit(self, *ops: Op) -> None:
        """Queue operations in order; after a failure they are dropped, their variables lost."""
        with self.changed:
            self._refuse_ended("extended")
            roles, fitted = self._roles, list[Op]()
            for op in ops:
                roles, each = roles.then(op)
                fitted += each
            self._roles = roles
            for op in fitted:
                self._take(op)
            is_due = self._is_due()
        if is_due:
            self.driver.start(self)

    def fork(self, size: int, driver: Driver) -> list[Branch]:
        """`size` branches that start where this one stands once its queue so far is done."""
        with self.changed:
            self._refuse_ended("forked")
            blank = self.interpreter.blank
            children = tuple(Branch(blank(), driver, parent=self) for _ in range(size))
            self._take(Split(children))
            is_due = self._is_due()
        if is_due:
            self.driver.start(self)
        return list(children)

    def begin(self, interpreter: Interpreter, failure: Failure | None, lost: set[str]) -> None:
        """The parent has come to the fork: go on from `interpreter`, or fail as it did."""
        with self.changed:
            self.interpreter = interpreter
            self._lost |= lost
            self._has_begun = True
            if failure is not None and self.failure is None:
                self._fail(failure)
            is_due = self._is_due()
            self.changed.notify()
        if is_due:
            self.driver.start(self)

    # ---- reading ----

    def value(self, name: str, outside: bool = False) -> Any:
        """A variable, once no queued operation will set it. Raises KeyError, or the failure."""
        with self.changed:
            self.changed.wait_for(lambda: self._is_known(name, outside))
            return self._get("variables", name)

    def meta(self, name: str, outside: bool = False) -> Any:
        """The meta information of a variable; KeyError when it has none."""
        with self.changed:
            self.changed.wait_for(lambda: self._is_known(name, outside))
            return self._get("metas", name)

    def has(self, name: str, outside: bool = False) -> bool:
        """Whether value() would give one; raises the failure when that is why it would not."""
        with self.changed:
            self.changed.wait_for(lambda: self._is_known(name, outside))
            return self._has("variables", name)

    def settle(self, outside: bool = False) -> None:
        """Wait until every operation is done, or the branch has failed. Raises nothing."""
        with self.changed:
            self.changed.wait_for(lambda: self._is_settled(outside))

    def check(self, outside: bool = False) -> None:
        """settle(), then raise the failure if there is one."""
        self.settle(outside)
        if self.failure is not None:
            self.failure.reveal()

    async def avalue(self, name: str, outside: bool = False) -> Any:
        await self.changed.until(lambda: self._is_known(name, outside))
        return self._get("variables", name)

    async def ameta(self, name: str, outside: bool = False) -> Any:
        await self.changed.until(lambda: self._is_known(name, outside))
        return self._get("metas", name)

    async def ahas(self, name: str, outside: bool = False) -> bool:
        await self.changed.until(lambda: self._is_known(name, outside))
        return self._has("variables", name)

    async def asettle(self, outside: bool = False) -> None:
        await self.changed.until(lambda: self._is_settled(outside))

    async def acheck(self, outside: bool = False) -> None:
        await self.asettle(outside)
        if self.failure is not None:
            self.failure.reveal()

    # ---- ending ----

    def fail(self, error: BaseException) -> None:
        """Drop what is queued; the first failure stays, and everyone waiting wakes up."""
        with self.changed:
            self._fail(self.failure or Failure(error))
            self.changed.notify()

    def drop(self) -> str | None:
        """Fail because the program wants no more of it; the place of the call under way."""
        with self.changed:
            self._fail(self.failure or Failure(cancelled("branch"), is_wanted=True))
            self.changed.notify()
            return None if self._call is None else self._call.place

    def end(self) -> None:
        """Nothing will be appended any more."""
        with self.changed:
            self._has_ended = True
            self.changed.notify()

    def conclude(self, result: Any, error: BaseException | None) -> None:
        """The program is over; with an error, whatever is not there now fails with that."""
        with self.changed:
            self._result = result
            if error is not None:
                self._verdict = self.failure = Failure(error)
            self.end()

    def result(self) -> Any:
        """What conclude() was given, waited for; raises its error. None on forks."""
        with self.changed:
            self.changed.wait_for(lambda: self._has_ended)
            return self._concluded()

    async def aresult(self) -> Any:
        await self.changed.until(lambda: self._has_ended)
        return self._concluded()

    def is_settled(self) -> bool:
        with self.changed:
            return not self._is_busy()

    def is_idle(self, outside: bool = False) -> bool:
        """Call with `changed` held: nothing queued, nothing running, nothing more to come."""
        return not self._is_busy() and (self._has_ended or not outside)

    def is_queued(self, name: str) -> bool:
        """Call with `changed` held: an operation that has not begun will set `name`."""
        return any(not isinstance(op, Split) and variable(op) == name for op in self._queue)

    # ---- working the queue off ----

    def pump(self, perform: Perform, keep: type[BaseException] = BaseException) -> None:
        """Make the calls of the queue in this thread. Errors beside `keep` are raised too."""
        try:
            while self._call is not None:
                self._step(perform(self._call, self._progress))
        except BaseException as error:
            # The program thread's border: whatever went wrong, those who wait must hear of it.
            self.stumble(error)
            if not isinstance(error, keep):
                raise

    async def apump(self, perform: APerform) -> None:
        """The same on an event loop; raises nothing."""
        try:
            while self._call is not None:
                self._step(await perform(self._call, self._progress))
        except asyncio.CancelledError:
            self.stumble(cancelled())
        except BaseException as error:
            self.stumble(error)

    def stumble(self, error: BaseException) -> None:
        """The operation at hand failed with `error`; so the branch does."""
        with self.changed:
            if self._steps is not None:
                with contextlib.suppress(BaseException):
                    self._steps.throw(error)
            if self._doing is not None:
                error.add_note(f"raised by {self._doing!r}")
            self._fail(self.failure or Failure(error))
            self._rest()
            self.changed.notify()

    def _step(self, reply: Any) -> None:
        with self.changed:
            if self.failure is not None:  # it failed from outside meanwhile
                self._rest()
            else:
                assert self._steps is not None
                self._call = _send(self._steps, reply)
                self._run_on()
            self.changed.notify()

    def _run_on(self) -> None:
        """With `changed` held: do operations until one needs a call, or none is left."""
        while self._call is None and self._queue:
            op = self._queue.popleft()
            if isinstance(op, Split):
                self._split(op)
                continue
            self._doing, self._steps = op, self.interpreter.perform(op)
            self._call = next(self._steps, None)
        if self._call is None:
            self._rest()

    def _rest(self) -> None:
        self._doing = self._steps = self._call = None
        self._is_pumping = False

    def _split(self, split: Split) -> None:
        interpreters = self.interpreter.fork(len(split.children))
        for child, interpreter in zip(split.children, interpreters, strict=True):
            child.begin(interpreter, self.failure, self._lost)

    def _progress(self, chunk: dict[str, Any]) -> None:
        with self.changed:
            self.interpreter.progress(chunk)
            self.changed.notify()

    def _take(self, op: Op | Split) -> None:
        if self.failure is None:
            self._queue.append(op)
        else:
            self._lose(op)

    def _is_due(self) -> bool:
        """With `changed` held: do what needs no call; whether a call is then to be made."""
        if self._is_pumping or not self._has_begun or not self._queue:
            return False
        self._run_on()
        self._is_pumping = self._call is not None
        return self._is_pumping

    def _fail(self, failure: Failure) -> None:
        self.failure = failure
        dropped = [self._doing, *self._queue]
        self._queue.clear()
        for op in dropped:
            self._lose(op)

    def _lose(self, op: Op | Split | None) -> None:
        if isinstance(op, Split):
            self._split(op)
        elif isinstance(op, Note):
            assert self.failure is not None
            op.told.lost(self.failure.error)
        elif op is not None and (name := variable(op)) is not None:
            self._lost.add(name)

    def _refuse_ended(self, what: str) -> None:
        if self._has_ended:
            raise ProgramError(f"the program has ended; its state can be read, not {what}")

    def _is_busy(self) -> bool:
        return self._is_pumping or not self._has_begun

    def _is_settled(self, outside: bool) -> bool:
        return self.failure is not None or self.is_idle(outside)

    def _is_known(self, name: str, outside: bool) -> bool:
        if self._is_settled(outside):
            return True
        coming = self.is_queued(name) or (self._doing and variable(self._doing) == name)
        return self._has_begun and name in self.interpreter.variables and not coming

    def _has(self, kind: str, name: str) -> bool:
        if name in getattr(self.interpreter, kind) and name not in self._lost:
            return True
        if self.failure is not None:
            self.failure.reveal()
        return False

    def _get(self, kind: str, name: str) -> Any:
        if not self._has(kind, name):
            raise self.interpreter.unknown(name)
        return getattr(self.interpreter, kind)[name]

    def _concluded(self) -> Any:
        if self._verdict is not None:
            self._verdict.reveal()
        return self._result


def failures_of(children: list[Branch]) -> None:
    """Raise the failure of the first of the settled children that failed; none goes unseen."""
    failures = [child.failure for child in children if child.failure is not None]
    failures = [failure for failure in failures if not failure.is_wanted]
    for failure in failures:
        failure.was_seen = True
    if failures:
        failures[0].reveal()


def gather(children: list[Branch]) -> list[Assign]:
    """Variables set in any settled child since the fork, each as the list of the children's values.

    Raises the failure of the first that failed.
    """
    failures_of(children)
    own = {name: None for child in children for name in child.interpreter.own}
    return [_gather_one(name, [child.interpreter for child in children]) for name in own]


def _gather_one(name: str, children: list[Interpreter]) -> Assign:
    values = [each.variables[name] if name in each.own else None for each in children]
    metas = [each.metas.get(name) if name in each.own else None for each in children]
    return Assign(name, values, metas if any(meta is not None for meta in metas) else None)


def _send(steps: Generator[Call, Any, None], reply: Any) -> Call | None:
    try:
        return steps.send(reply)
    except StopIteration:
        return None
