"""A branch: one interpreter, the queue of its operations, and everyone who waits for a value.

Owns: the order of operations, the failure of a branch, and when a wait ends. A threaded branch
works its queue off in a thread that starts with the first operation and ends with the last; any
other does so in the thread that appends. Must not know: how calls are made, what operations do.

Waits end when the value is there, when the branch has failed, or when nothing that could still
produce it is left. `outside` readers (of a streamed run) also wait for the program to append more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NoReturn

from radixserve.lang.errors import ProgramError
from radixserve.lang.interpreter import Call, Interpreter
from radixserve.lang.ir import Assign, Op, RoleBegin, RoleEnd, variable

Perform = Callable[[Call, Callable[[dict[str, Any]], None]], Any]


class Failure:
    """Why a branch failed. was_seen: someone has been handed the error."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.was_seen = False

    def reveal(self) -> NoReturn:
        self.was_seen = True
        raise self.error


class Branch:
    """perform_call(call, on_chunk) -> reply makes one call; it may raise anything."""

    def __init__(
        self,
        interpreter: Interpreter,
        perform_call: Perform,
        *,
        threaded: bool,
        parent: Branch | None = None,
    ) -> None:
        self.interpreter = interpreter
        self.failure: Failure | None = parent.failure if parent else None
        self._result: Any = None
        self._verdict: Failure | None = None
        self.changed = threading.Condition()
        self.listeners: set[Callable[[], None]] = set()
        self._perform_call = perform_call
        self._is_threaded = threaded
        self._queue: deque[Op] = deque()
        self._doing: Op | None = None
        self._is_pumping = False
        self._has_ended = False
        self._lost: set[str] = set(parent._lost) if parent else set()
        self._role: str | None = parent._role if parent else None
        self._thread: threading.Thread | None = None

    def submit(self, *ops: Op) -> None:
        """Queue operations in order; after a failure they are dropped, their variables lost."""
        with self.changed:
            if self._has_ended:
                raise ProgramError("the program has ended; its state can be read, not extended")
            for op in ops:
                self._check_role(op)
                if self.failure is None:
                    self._queue.append(op)
                else:
                    self._lose(op)
            if self._is_pumping or not self._queue:
                return
            self._is_pumping = True
        if self._is_threaded:
            self._start_thread()
        else:
            self._pump()

    def fork(self, size: int, *, threaded: bool) -> list[Branch]:
        """`size` branches that start where this one stands once its queue is done."""
        self.settle()
        with self.changed:
            if self._has_ended:
                raise ProgramError("the program has ended; its state can not be forked")
            return [
                Branch(each, self._perform_call, threaded=threaded, parent=self)
                for each in self.interpreter.fork(size)
            ]

    def value(self, name: str, outside: bool = False) -> Any:
        """A variable, once no queued operation will set it. Raises KeyError, or the failure."""
        return self._get(self.interpreter.variables, name, outside)

    def meta(self, name: str, outside: bool = False) -> Any:
        """The meta information of a variable; KeyError when it has none."""
        return self._get(self.interpreter.metas, name, outside)

    def has(self, name: str, outside: bool = False) -> bool:
        """Whether value() would give one; raises the failure when that is why it would not."""
        with self.changed:
            return self._await(self.interpreter.variables, name, outside)

    def settle(self, outside: bool = False) -> None:
        """Wait until every operation is done, or the branch has failed. Raises nothing."""
        with self.changed:
            self.changed.wait_for(lambda: self.failure is not None or self.is_idle(outside))

    def check(self, outside: bool = False) -> None:
        """settle(), then raise the failure if there is one."""
        self.settle(outside)
        if self.failure is not None:
            self.failure.reveal()

    def fail(self, error: BaseException) -> None:
        """Drop what is queued; the first failure stays, and everyone waiting wakes up."""
        with self.changed:
            if self.failure is None:
                self.failure = Failure(error)
            for op in (self._doing, *self._queue):
                self._lose(op)
            self._queue.clear()
            self._notify()

    def end(self) -> None:
        """Nothing will be appended any more."""
        with self.changed:
            self._has_ended = True
            self._notify()

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
            if self._verdict is not None:
                self._verdict.reveal()
            return self._result

    def join_thread(self, timeout: float) -> None:
        """Wait for the thread, at most `timeout` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)

    def is_settled(self) -> bool:
        with self.changed:
            return not self._is_pumping

    def is_idle(self, outside: bool = False) -> bool:
        """Call with `changed` held: nothing queued, nothing running, nothing more to come."""
        return not self._is_pumping and (self._has_ended or not outside)

    def is_queued(self, name: str) -> bool:
        """Call with `changed` held: an operation that has not begun will set `name`."""
        return any(variable(op) == name for op in self._queue)

    def _get(self, values: dict[str, Any], name: str, outside: bool) -> Any:
        with self.changed:
            if not self._await(values, name, outside):
                raise KeyError(name)
            return values[name]

    def _await(self, values: dict[str, Any], name: str, outside: bool) -> bool:
        self.changed.wait_for(lambda: self._is_known(name, outside))
        if name in values and name not in self._lost:
            return True
        if self.failure is not None:
            self.failure.reveal()
        return False

    def _is_known(self, name: str, outside: bool) -> bool:
        if self.failure is not None or self.is_idle(outside):
            return True
        coming = self.is_queued(name) or (self._doing and variable(self._doing) == name)
        return name in self.interpreter.variables and not coming

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._pump, name="radixserve-branch", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the system has no thread left
            self._thread = None
            self._stumble(error)

    def _pump(self) -> None:
        try:
            while self._begin():
                pass
        except BaseException as error:
            # The program thread's border: whatever went wrong, those who wait must hear of it.
            self._stumble(error)
            if not isinstance(error, Exception) and not self._is_threaded:
                raise

    def _begin(self) -> bool:
        """Do the next operation; False when there is none (then the pump has stopped)."""
        with self.changed:
            if not self._queue:
                self._is_pumping = False
                self._notify()
                return False
            op = self._doing = self._queue.popleft()
            steps = self.interpreter.perform(op)
            call = next(steps, None)
        while call is not None:
            reply = self._perform_call(call, self._progress)
            with self.changed:
                call = _send(steps, reply)
        with self.changed:
            self._doing = None
            self._notify()
        return True

    def _progress(self, chunk: dict[str, Any]) -> None:
        with self.changed:
            self.interpreter.progress(chunk)
            self._notify()

    def _stumble(self, error: BaseException) -> None:
        with self.changed:
            if self._doing is not None:
                error.add_note(f"raised by {self._doing!r}")
            self.fail(error)
            self._doing = None
            self._is_pumping = False
            self._notify()

    def _lose(self, op: Op | None) -> None:
        name = variable(op) if op else None
        if name is not None:
            self._lost.add(name)

    def _check_role(self, op: Op) -> None:
        match op:
            case RoleBegin(role=role):
                if self._role is not None:
                    raise ProgramError(f"role {role!r} begins inside role {self._role!r}")
                self._role = role
            case RoleEnd(role=role):
                if self._role != role:
                    raise ProgramError(f"role {role!r} ends, but {self._role!r} is open")
                self._role = None
            case _:
                pass

    def _notify(self) -> None:
        self.changed.notify_all()
        for listener in self.listeners:
            listener()


def gather(children: list[Branch]) -> list[Assign]:
    """Variables set in any child since the fork, each as the list of the children's values.

    Waits for all of them, then raises the failure of the first that failed.
    """
    for child in children:
        child.settle()
    failures = [child.failure for child in children if child.failure is not None]
    for failure in failures:
        failure.was_seen = True
    if failures:
        failures[0].reveal()
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
