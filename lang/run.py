"""A run: one program from its first line to the end of its last thread or task.

Owns: the branches of a run and the order of its end: user function, branches, threads, error. Must
not know: programs' arguments, batches, HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

from radixserve.lang.asking import Place, Settings
from radixserve.lang.backends.base import Backend
from radixserve.lang.backends.threaded import in_thread, retrieved
from radixserve.lang.branch import Branch
from radixserve.lang.calls import Caller, Deadline, cancelled
from radixserve.lang.drivers import Inline, Loop, Threads
from radixserve.lang.interpreter import Interpreter

MakeCaller = Callable[[Backend, int, Deadline], Caller]

JOIN_SECONDS = 10.0  # for a thread whose backend does not return from an aborted call
GRACE_SECONDS = 0.5  # for a function that is told, where it reads its state, that its run is over


class Run:
    """use_thread: forked branches work side by side; otherwise each in the thread that appends.

    timeout: seconds for the whole program. retries: further tries of a call that fails for a
    transient reason. on_loop: calls are made by tasks of the running event loop, by aexecute().
    """

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        *,
        timeout: float | None = None,
        retries: int = 0,
        use_thread: bool = True,
        on_loop: bool = False,
        caller: MakeCaller = Caller,
    ) -> None:
        self.id = secrets.token_hex(8)
        self._deadline = Deadline(timeout, "the program")
        self.caller = caller(backend, retries, self._deadline)
        self._lock = threading.Lock()
        perform = self.caller.perform
        self._threads = Threads(perform)
        self._loop: Loop | None = None
        if on_loop:
            self._loop = Loop(self.caller.aperform, asyncio.get_running_loop())
        inline = Inline(perform)
        root = inline if self.caller.is_instant else self._loop or inline
        threads = self._threads if use_thread else inline
        self._fork_driver = inline if self.caller.is_instant else self._loop or threads
        self.root = Branch(Interpreter(Place(self.id), settings), root)
        self._branches = [self.root]
        self._body: asyncio.Future[Any] | None = None

    def fork(self, branch: Branch, size: int) -> list[Branch]:
        """Branches that this run waits for at its end."""
        children = branch.fork(size, self._fork_driver)
        with self._lock:
            self._branches.extend(children)
        return children

    def execute(self, body: Callable[[], Any]) -> None:
        """Run `body` (the user's function on the root) and wait for every branch.

        Raises what body raised (the other branches are cancelled), else the first branch's failure
        that nobody has been handed. Its threads have ended in either case.
        """
        try:
            try:
                result = body()
                for branch in self._branches:
                    branch.settle()
            except BaseException as error:
                self._give_up(error)
                raise
            finally:
                self._end_branches()
                self._threads.join(JOIN_SECONDS)
                self.caller.close()
            self._raise_unseen()
        except BaseException as error:
            self.root.conclude(None, error)
            raise
        self.root.conclude(result, None)

    async def aexecute(self, body: Callable[[], Any], *, in_own_thread: bool) -> None:
        """execute() on the running loop. Cancelling it cancels the run and aborts its calls.

        in_own_thread: body blocks, so it has a thread while it runs; otherwise it is async.
        """
        assert self._loop is not None
        try:
            try:
                result = await self._in_time(body, in_own_thread)
            except BaseException as error:
                self._give_up(_as_told(error))
                raise
            finally:
                self._end_branches()
                if self._body is not None:
                    await asyncio.wait({self._body}, timeout=GRACE_SECONDS)
                await self._loop.join(JOIN_SECONDS)
            self._raise_unseen()
        except BaseException as error:
            self.root.conclude(None, _as_told(error))
            raise
        self.root.conclude(result, None)

    async def asettle(self) -> None:
        """Wait until every branch has done what was appended, or failed."""
        for branch in self._branches:
            await branch.asettle()

    def cancel(self) -> None:
        """Fail every branch with ProgramCancelled and abort the calls in flight."""
        self._give_up(cancelled())

    def drop(self, branch: Branch) -> None:
        """Fail this branch and those that are forked from it; their calls are aborted."""
        with self._lock:
            branches = [each for each in self._branches if branch in _line(each)]
        places = [each.drop() for each in branches]
        self.caller.drop({place for place in places if place is not None})

    def _give_up(self, error: BaseException) -> None:
        """Cancel; who reads the root from outside is told `error`, the reason, at once."""
        if not self.root.is_settled():
            self.root.fail(error)
        with self._lock:
            branches = list(self._branches)
        for branch in branches:
            if not branch.is_settled():
                branch.fail(cancelled())
        self.caller.cancel()

    async def _in_time(self, body: Callable[[], Any], in_own_thread: bool) -> Any:
        try:
            async with asyncio.timeout(self._deadline.left()) as limit:
                if in_own_thread:
                    # Shielded: a cancelled run first fails its branches, which wakes the function.
                    self._body = in_thread(body, "radixserve-program")
                    self._body.add_done_callback(retrieved)
                    result = await asyncio.shield(self._body)
                else:
                    result = await body()
                await self.asettle()
                return result
        except TimeoutError:
            if limit.expired():
                raise self._deadline.error() from None
            raise

    def _end_branches(self) -> None:
        for branch in self._branches:
            if branch is not self.root:
                branch.end()

    def _raise_unseen(self) -> None:
        for branch in self._branches:
            if branch.failure is not None and not branch.failure.was_seen:
                branch.failure.reveal()


def _line(branch: Branch) -> Iterator[Branch]:
    """It, what it was forked from, and so on."""
    at: Branch | None = branch
    while at is not None:
        yield at
        at = at.parent


def _as_told(error: BaseException) -> BaseException:
    """What others are told of an error: a cancelled task is a cancelled program to them."""
    return cancelled() if isinstance(error, asyncio.CancelledError) else error
