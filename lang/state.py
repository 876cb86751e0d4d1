"""The state that a program's function is given, and groups of forked states.

Owns: the syntax of states (+=, [], with). Must not know: threads, wire forms, how a value is made.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar, cast

from radixserve.lang.branch import Branch
from radixserve.lang.errors import ProgramError
from radixserve.lang.ir import (
    Assign,
    Border,
    Expr,
    Nested,
    Op,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    items,
)
from radixserve.lang.joining import gather
from radixserve.lang.reading import read, read_async
from radixserve.lang.report import Explanation
from radixserve.lang.run import Run

Appendable = str | Expr
S = TypeVar("S", bound="OpenState")


class OpenState:
    """What can be done with a state without waiting: appending, forking, setting variables.

    An error of the model or the backend is kept by the state: appending goes on without effect, and
    reading what is not there because of it raises it. What was there before stays readable.
    """

    def __init__(self, run: Run, branch: Branch, outside: bool = False) -> None:
        self._run = run
        self._branch = branch
        self._outside = outside

    def __iadd__(self, other: Appendable) -> Self:
        self._append(items(other))
        return self

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def set_var(self, name: str, value: Any) -> None:
        """Set a variable, in order with what is appended; the text does not change."""
        self._submit(Assign(name, value))

    @contextlib.contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """The text appended inside becomes the variable `name`."""
        with self._between(ScopeBegin(), ScopeEnd(name)):
            yield

    def system(self, expr: Appendable | None = None) -> contextlib.AbstractContextManager[None]:
        return self._role("system", expr)

    def user(self, expr: Appendable | None = None) -> contextlib.AbstractContextManager[None]:
        return self._role("user", expr)

    def assistant(self, expr: Appendable | None = None) -> contextlib.AbstractContextManager[None]:
        return self._role("assistant", expr)

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """text_iter() on an event loop; with return_meta_data pairs of (increment, meta so far)."""
        if return_meta_data and var_name is None:
            raise ValueError("return_meta_data needs var_name")
        increments = read_async(self._branch, var_name, self._outside)
        try:
            async for delta, meta in increments:
                yield (delta, meta) if return_meta_data else delta
        finally:
            await increments.aclose()

    def __aiter__(self) -> AsyncIterator[str]:
        return self.text_async_iter()

    def _called(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """What to call where a program is called with this state: `func`, or a form of it."""
        return func

    def cancel(self) -> None:
        """End the run: its calls are aborted, what waits raises ProgramCancelled.

        On a forked state only that branch and those forked from it: what it has is kept, what it
        has not raises ProgramCancelled where it is read, join() leaves it out, and the run goes on.
        """
        if self._branch is self._run.root:
            self._run.cancel()
        else:
            self._run.drop(self._branch)

    def _role(self, role: str, expr: Appendable | None) -> contextlib.AbstractContextManager[None]:
        if expr is None:
            return self._between(RoleBegin(role), RoleEnd(role))
        self._append((RoleBegin(role), *items(expr), RoleEnd(role)))
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _between(self, begin: Op, end: Op) -> Iterator[None]:
        self._submit(begin)
        try:
            yield
        finally:
            self._submit(end)

    def _append(self, parts: Iterable[Op | Nested]) -> None:
        ops: list[Op] = []
        for item in parts:
            if type(item) is not Nested:
                ops.append(cast("Op", item))
                continue
            self._submit(*ops)
            ops = []
            if inspect.iscoroutinefunction(item.body):
                raise TypeError(f"{item.name} is async: write `await {item.name}(s, ..)`")
            self._called(item.body)(self, *item.args, **item.kwargs)
        self._submit(*ops)

    def _submit(self, *ops: Op) -> None:
        self._refuse_outside()
        self._branch.submit(*ops)

    def _children(self, size: int) -> list[Branch]:
        if size < 0:
            raise ValueError(f"fork(size) must be 0 or more, not {size}")
        self._refuse_outside()
        return self._run.fork(self._branch, size)

    def _refuse_outside(self) -> None:
        if self._outside:
            raise ProgramError("the result of run() can be read, not extended or forked")


class ProgramState(OpenState):
    """One branch of a running program, or the result of one that has ended. Reading waits."""

    def __repr__(self) -> str:
        with self._branch.changed:
            failure, shown = self._branch.failure, self._branch.interpreter.shown()
        return f"<state with {shown}{f'; {failure.error!r}' if failure else ''}>"

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __contains__(self, name: str) -> bool:
        return self._branch.has(name, self._outside)

    def get_var(self, name: str) -> Any:
        """The variable's newest value, waited for. Raises KeyError, or why it could not be made."""
        return self._branch.value(name, self._outside)

    def get_meta_info(self, name: str) -> Any:
        """Meta information of the gen or select that made `name`; a list of them for n > 1."""
        return self._branch.meta(name, self._outside)

    def text(self) -> str:
        """All text so far, role blocks marked as in "USER: hi\\n".

        The model reads the marks of its own template instead; messages() has the blocks alone.
        """
        self._branch.check(self._outside)
        return self._branch.interpreter.text()

    def messages(self) -> list[dict[str, Any]]:
        """The role blocks that have been closed: [{"role": .., "content": ..}, ..].

        Calls and their results stand there as in OpenAI's chat.
        """
        self._branch.check(self._outside)
        return [dict(each) for each in self._branch.interpreter.messages]

    def sync(self) -> None:
        """Wait for everything appended; text appended after this is a segment of its own."""
        if not self._outside:
            self._submit(Border())
        self._branch.check(self._outside)

    def error(self) -> BaseException | None:
        """Wait as sync() does and return the error instead of raising it; None when all is well."""
        self._branch.settle(self._outside)
        failure = self._branch.failure
        if failure is None:
            return None
        failure.was_seen = True
        return failure.error

    @property
    def ret_value(self) -> Any:
        """What the program's function returned. Raises what the run raised."""
        if not self._outside:
            raise ProgramError("ret_value belongs to the result of run()")
        return self._branch.result()

    def explain(self) -> Explanation:
        """Every call of the run with its tokens, time and constraint; print it. Waits."""
        self._branch.settle(self._outside)
        interpreter = self._branch.interpreter
        return Explanation(interpreter.reports, interpreter.history.pieces)

    def fork(self, size: int = 1, position_ids_offset: Sequence[int] | None = None) -> ForkGroup:
        """`size` states that go on from here side by side; this one is not changed by them."""
        if position_ids_offset is not None:
            raise NotImplementedError("fork(position_ids_offset=..) is not implemented")
        children = self._children(size)
        return ForkGroup([ProgramState(self._run, each) for each in children], self)

    def copy(self) -> CopiedState:
        """A fork of one. As `with s.copy() as t:` its variables are gathered at the end."""
        [child] = self._children(1)
        return CopiedState(self._run, child, self)

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text, or a variable's text, in increments as they come. Raises what stopped it."""
        return read(self._branch, var_name, self._outside)


class Children(Generic[S]):
    """The children of one fork, by index.

    `g += x` appends x to each child; a list or tuple gives child i its item i, a callable is called
    with i for what to append.
    """

    def __init__(self, states: list[S], parent: S) -> None:
        self._states = states
        self._parent = parent

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[S]:
        return iter(self._states)

    def __getitem__(self, index: int) -> S:
        return self._states[index]

    def __setitem__(self, index: int, state: S) -> None:
        # `g[i] += x` ends with this assignment of what g[i] already is.
        if self._states[index] is not state:
            raise TypeError("a forked state can be appended to, not replaced")

    def __iadd__(
        self, other: Appendable | Sequence[Appendable] | Callable[[int], Appendable]
    ) -> Self:
        for i, each in enumerate(self._spread(other)):
            self._states[i]._append(items(each))
        return self

    def _gather(self) -> None:
        """With all children settled: give the parent their variables, or raise."""
        for assign in gather([state._branch for state in self._states]):
            self._parent._submit(assign)

    def _spread(
        self, other: Appendable | Sequence[Appendable] | Callable[[int], Appendable]
    ) -> Sequence[Appendable]:
        if isinstance(other, Expr | str):  # in this order: a traced value tells no other type
            return [other] * len(self)
        if callable(other):
            return [other(i) for i in range(len(self))]
        if len(other) != len(self):
            raise ValueError(f"{len(other)} expressions for {len(self)} forked states")
        return other


class ForkGroup(Children[ProgramState]):
    """The children of a fork in a plain function."""

    def join(self, mode: str = "gather_variable") -> None:
        """Wait for all children; the parent gets each variable set in them as a list by index.

        None stands for a child that did not set it. Raises the first failed child's error. May be
        called again, and gathers again.
        """
        check_mode(mode)
        for state in self._states:
            state._branch.settle()
        self._gather()


def check_mode(mode: str) -> None:
    if mode != "gather_variable":
        raise NotImplementedError(f"join(mode={mode!r}) is not implemented")


class CopiedState(ProgramState):
    """A fork of one; leaving its `with` block gathers its variables as join() does."""

    def __init__(self, run: Run, branch: Branch, parent: ProgramState) -> None:
        super().__init__(run, branch)
        self._group = ForkGroup([self], parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._group.join()
