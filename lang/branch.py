"""A branch: its operations, who works them off, and everyone who waits for a value.

Owns: what may be appended, the failure of a branch, and when a wait ends. Must not know: how calls
are made, what operations do, in which thread or on which loop its driver works.

Operations that need no call are done as they are appended. The first that needs one makes the
driver work the queue off, by pump() in some thread or apump() on a loop. Waits end when the value
is there, when the branch has failed, or when nothing that could still produce it is left. `outside`
readers (of a streamed run) also wait for the program to append more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from radixserve.lang.calls import Call, cancelled
from radixserve.lang.errors import ProgramError
from radixserve.lang.interpreter import Interpreter
from radixserve.lang.ir import Op
from radixserve.lang.operations import Failure, Operations, Split
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


class Branch:
    """parent: the branch that this one is forked from; it begins with begin()."""

    def __init__(
        self, interpreter: Interpreter, driver: Driver, parent: Branch | None = None
    ) -> None:
        self._operations = Operations(interpreter)
        self.driver = driver
        self.parent = parent
        self.changed = Changes(driver.would_block)
        self._result: Any = None
        self._verdict: Failure | None = None
        self._has_begun = parent is None
        self._is_pumping = False
        self._has_ended = False
        self._roles: Roles = parent._roles if parent else Roles()

    @property
    def interpreter(self) -> Interpreter:
        return self._operations.interpreter

    @property
    def failure(self) -> Failure | None:
        return self._operations.failure

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
                self._operations.take(op)
            is_due = self._is_due()
        if is_due:
            self.driver.start(self)

    def fork(self, size: int, driver: Driver) -> list[Branch]:
        """`size` branches that start where this one stands once its queue so far is done."""
        with self.changed:
            self._refuse_ended("forked")
            blank = self.interpreter.blank
            children = tuple(Branch(blank(), driver, parent=self) for _ in range(size))
            self._operations.take(Split(children))
            is_due = self._is_due()
        if is_due:
            self.driver.start(self)
        return list(children)

    def begin(self, interpreter: Interpreter, failure: Failure | None, lost: set[str]) -> None:
        """The parent has come to the fork: go on from `interpreter`, or fail as it did."""
        with self.changed:
            self._operations.interpreter = interpreter
            self._operations.lost |= lost
            self._has_begun = True
            if failure is not None and self.failure is None:
                self._operations.drop(failure)
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
            self._operations.drop(self.failure or Failure(error))
            self.changed.notify()

    def drop(self) -> str | None:
        """Fail because the program wants no more of it; the place of the call under way."""
        with self.changed:
            self._operations.drop(self.failure or Failure(cancelled("branch"), is_wanted=True))
            self.changed.notify()
            call = self._operations.call
            return None if call is None else call.place

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
                self._verdict = self._operations.failure = Failure(error)
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
        return self._operations.will_set(name)

    # ---- working the queue off ----

    def pump(self, perform: Perform, keep: type[BaseException] = BaseException) -> None:
        """Make the calls of the queue in this thread. Errors beside `keep` are raised too."""
        try:
            while (call := self._operations.call) is not None:
                self._step(perform(call, self._progress))
        except BaseException as error:
            # The program thread's border: whatever went wrong, those who wait must hear of it.
            self.stumble(error)
            if not isinstance(error, keep):
                raise

    async def apump(self, perform: APerform) -> None:
        """The same on an event loop; raises nothing."""
        try:
            while (call := self._operations.call) is not None:
                self._step(await perform(call, self._progress))
        except asyncio.CancelledError:
            self.stumble(cancelled())
        except BaseException as error:
            self.stumble(error)

    def stumble(self, error: BaseException) -> None:
        """The operation at hand failed with `error`; so the branch does."""
        with self.changed:
            self._operations.throw(error)
            self._operations.drop(self.failure or Failure(error))
            self._rest()
            self.changed.notify()

    def _step(self, reply: Any) -> None:
        with self.changed:
            if self.failure is not None:  # it failed from outside meanwhile
                self._rest()
            else:
                self._operations.answer(reply)
                self._is_pumping = self._operations.call is not None
            self.changed.notify()

    def _rest(self) -> None:
        self._operations.rest()
        self._is_pumping = False

    def _progress(self, chunk: dict[str, Any]) -> None:
        with self.changed:
            self.interpreter.progress(chunk)
            self.changed.notify()

    def _is_due(self) -> bool:
        """With `changed` held: do what needs no call; whether a call is then to be made."""
        if self._is_pumping or not self._has_begun or not self._operations.has_more:
            return False
        self._operations.go_on()
        self._is_pumping = self._operations.call is not None
        return self._is_pumping

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
        coming = self.is_queued(name) or self._operations.is_setting(name)
        return self._has_begun and name in self.interpreter.variables and not coming

    def _has(self, kind: str, name: str) -> bool:
        if name in getattr(self.interpreter, kind) and name not in self._operations.lost:
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
