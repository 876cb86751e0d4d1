"""One execution of a program's function: with which arguments, and on which kind of state.

Owns: choosing the plain or the async state, and what surrounds the run of each. Must not know:
batches, sampling parameters.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from radixserve.lang.async_state import AsyncState
from radixserve.lang.portal import Portal
from radixserve.lang.run import Run
from radixserve.lang.state import ProgramState

OpenRun = Callable[[bool], Run]


@dataclass(frozen=True, slots=True)
class Work:
    """func(state, *args, **kwargs). open_run(on_loop) gives the run to do it on.

    order: what the prompt begins with, as far as it is known before; None: it is not.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    open_run: OpenRun
    order: Callable[[], str] | None = None

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.func)

    def run(self) -> ProgramState:
        """Do it, blocking. A plain function runs in this thread, an async one on its own loop."""
        if self.is_async:
            with Portal() as portal:
                return portal.run(self.arun())
        run = self.open_run(False)
        run.execute(lambda: self.func(ProgramState(run, run.root), *self.args, **self.kwargs))
        return ProgramState(run, run.root, outside=True)

    def start(self) -> ProgramState:
        """Do it in a thread; its errors are raised where the state is read."""
        if self.is_async:
            return self._start_async()
        run = self.open_run(False)

        def work() -> None:
            with contextlib.suppress(BaseException):
                run.execute(
                    lambda: self.func(ProgramState(run, run.root), *self.args, **self.kwargs)
                )

        _thread(work, self.func)
        return ProgramState(run, run.root, outside=True)

    async def arun(self) -> ProgramState:
        """Do it on the running loop; a plain function has a thread while it runs."""
        run = self.open_run(True)
        await self._execute(run)
        return ProgramState(run, run.root, outside=True)

    async def astart(self) -> AsyncState:
        """Do it in a task of its own, which is cancelled with the task that called this."""
        run, caller = self.open_run(True), asyncio.current_task()
        task = asyncio.create_task(self._execute_quietly(run))
        if caller is not None:
            caller.add_done_callback(lambda ended: run.cancel() if ended.cancelled() else None)
        return AsyncState(run, run.root, outside=True, task=task)

    def _start_async(self) -> ProgramState:
        portal = Portal()
        run = portal.run(self._open_here())

        def work() -> None:
            with portal:
                portal.run(self._execute_quietly(run))

        _thread(work, self.func)
        return ProgramState(run, run.root, outside=True)

    async def _open_here(self) -> Run:
        return self.open_run(True)

    async def _execute(self, run: Run) -> None:
        kind = AsyncState if self.is_async else ProgramState
        await run.aexecute(
            lambda: self.func(kind(run, run.root), *self.args, **self.kwargs),
            in_own_thread=not self.is_async,
        )

    async def _execute_quietly(self, run: Run) -> None:
        with contextlib.suppress(BaseException):
            await self._execute(run)


def _thread(work: Callable[[], None], func: Callable[..., Any]) -> None:
    name = f"radixserve-{func.__name__}"
    threading.Thread(target=work, name=name, daemon=True).start()
