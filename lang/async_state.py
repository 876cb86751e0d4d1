"""The state that an `async def` program is given: the same language, with reads that are awaited.

Owns: the syntax of async states. Must not know: threads, wire forms, how a value is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NoReturn, Self

from radixserve.lang.branch import Branch
from radixserve.lang.errors import ProgramError
from radixserve.lang.ir import Border
from radixserve.lang.report import Explanation
from radixserve.lang.run import Run
from radixserve.lang.state import Children, OpenState, check_mode


class Pending:
    """A value that is there once it is awaited; any other use of it raises ProgramError."""

    def __init__(self, name: str, read: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._name = name
        self._read = read

    def __await__(self) -> Generator[Any, None, Any]:
        return self._read().__await__()

    def __repr__(self) -> str:
        return f"<pending {self._name!r}: await it>"

    def _refuse(self, *_: object) -> NoReturn:
        raise ProgramError(f"this program is async: write `await s[{self._name!r}]`")

    __str__ = __format__ = __bool__ = __eq__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse
    __iter__ = __len__ = __getitem__ = __contains__ = __add__ = __radd__ = _refuse
    __int__ = __float__ = __index__ = __hash__ = _refuse


class AsyncState(OpenState):
    """One branch of a running async program, or the result of a streamed one.

    `await s["x"]` waits for a value; the methods of a plain state that wait are coroutines here.
    As `async with state:` the run is cancelled, if it has not ended, when the block is left.
    """

    def __init__(
        self,
        run: Run,
        branch: Branch,
        outside: bool = False,
        task: asyncio.Task[None] | None = None,
    ) -> None:
        super().__init__(run, branch, outside)
        self._task = task

    def __getitem__(self, name: str) -> Pending:
        return Pending(name, lambda: self.get_var(name))

    def __contains__(self, name: str) -> bool:
        raise ProgramError(f"this program is async: write `await s.has({name!r})`")

    async def get_var(self, name: str) -> Any:
        """The variable's newest value. Raises KeyError, or why it could not be made."""
        return await self._branch.avalue(name, self._outside)

    async def has(self, name: str) -> bool:
        """What `"x" in s` says of a plain state."""
        return await self._branch.ahas(name, self._outside)

    async def get_meta_info(self, name: str) -> Any:
        return await self._branch.ameta(name, self._outside)

    async def text(self) -> str:
        await self._branch.acheck(self._outside)
        return self._branch.interpreter.text()

    async def messages(self) -> list[dict[str, Any]]:
        await self._branch.acheck(self._outside)
        return [dict(each) for each in self._branch.interpreter.messages]

    async def sync(self) -> None:
        if not self._outside:
            self._submit(Border())
        await self._branch.acheck(self._outside)

    async def error(self) -> BaseException | None:
        await self._branch.asettle(self._outside)
        failure = self._branch.failure
        if failure is None:
            return None
        failure.was_seen = True
        return failure.error

    async def ret_value(self) -> Any:
        """What the program's function returned. Raises what the run raised."""
        if not self._outside:
            raise ProgramError("ret_value() belongs to the result of arun()")
        return await self._branch.aresult()

    async def explain(self) -> Explanation:
        await self._branch.asettle(self._outside)
        interpreter = self._branch.interpreter
        return Explanation(interpreter.reports, interpreter.history.pieces)

    def fork(self, size: int = 1) -> AsyncForkGroup:
        """`size` states that go on from here side by side. Does not wait."""
        children = self._children(size)
        return AsyncForkGroup([AsyncState(self._run, each) for each in children], self)

    def copy(self) -> AsyncCopiedState:
        """A fork of one. As `async with s.copy() as t:` its variables are gathered at the end."""
        [child] = self._children(1)
        return AsyncCopiedState(self._run, child, self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self.cancel()
            self._task.cancel()
            await asyncio.wait({self._task})


class AsyncForkGroup(Children[AsyncState]):
    """The children of a fork in an async program."""

    async def join(self, mode: str = "gather_variable") -> None:
        """ForkGroup.join(), awaited."""
        check_mode(mode)
        for state in self._states:
            await state._branch.asettle()
        self._gather()


class AsyncCopiedState(AsyncState):
    """A fork of one; leaving its `async with` block gathers its variables as join() does."""

    def __init__(self, run: Run, branch: Branch, parent: AsyncState) -> None:
        super().__init__(run, branch)
        self._group = AsyncForkGroup([self], parent)

    async def __aexit__(self, *error: object) -> None:
        if error[0] is None:
            await self._group.join()
