"""The operations of a branch: those that wait for their turn, and the one at hand.

Owns: their order, which of them needs a call, what becomes of those that are dropped. Must not
know: threads, waiting, how calls are made. Everything here is done with the branch's lock held.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from radixserve.lang.calls import Call
from radixserve.lang.interpreter import Interpreter
from radixserve.lang.ir import Note, Op, variable


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


class Child(Protocol):
    """A branch that begins at a fork."""

    def begin(self, interpreter: Interpreter, failure: Failure | None, lost: set[str]) -> None:
        """The parent has come to the fork: go on from `interpreter`, or fail as it did. lost:
        variables that failed operations would have set."""
        ...


@dataclass(frozen=True, slots=True)
class Split:
    """Where in its parent's queue the children of a fork begin."""

    children: tuple[Child, ...]


class Operations:
    """call: what the operation at hand waits for; None: nothing is at hand. lost: variables that
    operations would have set that were dropped. failure: why they were.
    """

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.call: Call | None = None
        self.lost: set[str] = set()
        self.failure: Failure | None = None
        self._queue: deque[Op | Split] = deque()
        self._doing: Op | None = None
        self._steps: Generator[Call, Any, None] | None = None

    @property
    def has_more(self) -> bool:
        """Some have not begun."""
        return bool(self._queue)

    def take(self, op: Op | Split) -> None:
        """The last to be done; dropped where the branch has failed."""
        if self.failure is None:
            self._queue.append(op)
        else:
            self._lose(op)

    def will_set(self, name: str) -> bool:
        """An operation that has not begun will set this variable."""
        return any(not isinstance(op, Split) and variable(op) == name for op in self._queue)

    def is_setting(self, name: str) -> bool:
        """The one at hand will."""
        return self._doing is not None and variable(self._doing) == name

    def go_on(self) -> None:
        """Do operations until one needs a call, or none is left."""
        while self.call is None and self._queue:
            op = self._queue.popleft()
            if isinstance(op, Split):
                self._split(op)
                continue
            self._doing, self._steps = op, self.interpreter.perform(op)
            self.call = next(self._steps, None)
        if self.call is None:
            self.rest()

    def answer(self, reply: Any) -> None:
        """The reply of `call`; goes on."""
        assert self._steps is not None
        self.call = _send(self._steps, reply)
        self.go_on()

    def throw(self, error: BaseException) -> None:
        """The one at hand fails with `error`."""
        if self._steps is not None:
            with contextlib.suppress(BaseException):
                self._steps.throw(error)
        if self._doing is not None:
            error.add_note(f"raised by {self._doing!r}")

    def rest(self) -> None:
        """Nothing is at hand any more."""
        self._doing = self._steps = self.call = None

    def drop(self, failure: Failure) -> None:
        """None of them will be done; the one at hand may go on until its reply comes."""
        self.failure = failure
        dropped = [self._doing, *self._queue]
        self._queue.clear()
        for op in dropped:
            self._lose(op)

    def _split(self, split: Split) -> None:
        interpreters = self.interpreter.fork(len(split.children))
        for child, interpreter in zip(split.children, interpreters, strict=True):
            child.begin(interpreter, self.failure, self.lost)

    def _lose(self, op: Op | Split | None) -> None:
        if isinstance(op, Split):
            self._split(op)
        elif isinstance(op, Note):
            assert self.failure is not None
            op.told.lost(self.failure.error)
        elif op is not None and (name := variable(op)) is not None:
            self.lost.add(name)


def _send(steps: Generator[Call, Any, None], reply: Any) -> Call | None:
    try:
        return steps.send(reply)
    except StopIteration:
        return None
