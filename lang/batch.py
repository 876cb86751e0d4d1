"""Many runs of one program, results in the order of their arguments.

Owns: how many run side by side and ahead of the reader, what one failure does to the others, the
batch's deadline. Must not know: how a program runs.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from radixserve.lang.calls import Deadline
from radixserve.lang.checkpoint import Checkpoint
from radixserve.lang.portal import Portal
from radixserve.lang.progress import Progress
from radixserve.lang.state import ProgramState
from radixserve.lang.work import Work

LIST_AHEAD = 1000  # items begun before the oldest has ended, where all states are kept anyway


@dataclass(frozen=True, slots=True)
class Failed:
    error: BaseException


Outcome = ProgramState | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """at_once: programs running side by side. ahead: items taken and not yet given back."""

    at_once: int
    ahead: int
    keep_errors: bool
    timeout: float | None
    checkpoint: Checkpoint | None
    progress: Progress | None


class Batch:
    """results() for a thread, aresults() for an event loop; use one of them, once.

    Without keep_errors the first error of any item ends the others and is raised at once.
    """

    def __init__(self, items: Iterator[Work], options: BatchOptions) -> None:
        self._items = enumerate(items)
        self._options = options
        self._window: deque[asyncio.Task[Outcome]] = deque()
        self._deadline = Deadline(options.timeout, "the batch")
        self._is_ordered = False
        self._restored: set[int] = set()  # by a checkpoint, and not yet counted

    def results(self) -> Iterator[ProgramState | BaseException]:
        """Items are taken in the caller's thread. Closing it cancels what is running."""
        with Portal("radixserve-batch") as portal:
            portal.run(self._open())
            try:
                while (more := self._take()) or self._window:
                    yield self._given(portal.run(self._advance(more)))
            finally:
                portal.run(self._stop())
                self._close()

    async def aresults(self) -> AsyncGenerator[ProgramState | BaseException, None]:
        await self._open()
        try:
            while (more := self._take()) or self._window:
                yield self._given(await self._advance(more))
        finally:
            await self._stop()
            self._close()

    def _take(self) -> list[tuple[int, Work]]:
        """Items to begin, many together where their order is of use."""
        room = self._options.ahead - len(self._window)
        if self._is_ordered and self._window and room < self._options.ahead // 2:
            return []
        return list(itertools.islice(self._items, room))

    def _given(self, outcome: Outcome) -> ProgramState | BaseException:
        if not isinstance(outcome, Failed):
            return outcome
        if self._options.keep_errors and isinstance(outcome.error, Exception):
            return outcome.error
        raise outcome.error

    async def _open(self) -> None:
        self._gate = asyncio.Semaphore(self._options.at_once)
        self._failed: asyncio.Future[Failed] = asyncio.get_running_loop().create_future()

    async def _advance(self, more: list[tuple[int, Work]]) -> Outcome:
        """Begin these, and wait for the oldest, or the first failure."""
        tasks = {
            index: asyncio.create_task(self._one(index, work)) for index, work in self._sorted(more)
        }
        self._window += [tasks[index] for index, _ in more]
        head = self._window.popleft()
        either: set[asyncio.Future[Any]] = {head, self._failed}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._window.appendleft(head)
            raise
        if self._failed.done():
            self._window.appendleft(head)
            return self._failed.result()
        return head.result()

    def _sorted(self, more: list[tuple[int, Work]]) -> list[tuple[int, Work]]:
        """In an order in which those that share a prompt's beginning meet."""
        if not any(work.order is not None for _, work in more):
            return more
        self._is_ordered = True
        return sorted(more, key=lambda item: item[1].order() if item[1].order else "")

    async def _one(self, index: int, work: Work) -> Outcome:
        try:
            async with asyncio.timeout(self._deadline.left()), self._gate:
                outcome = await self._settled(index, work)
        except TimeoutError:
            outcome = self._note(index, self._deadline.error())
        if self._options.progress is not None:
            self._options.progress.step(is_restored=index in self._restored)
            self._restored.discard(index)
        return outcome

    async def _settled(self, index: int, work: Work) -> Outcome:
        if self._failed.done():
            return self._failed.result()
        try:
            return await self._kept(index, work)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # A program's border: kept here, raised or given to the caller by results().
            return self._note(index, error)

    def _note(self, index: int, error: BaseException) -> Failed:
        error.add_note(f"raised by item {index} of run_batch")
        failed = Failed(error)
        is_kept = self._options.keep_errors and isinstance(error, Exception)
        if not is_kept and not self._failed.done():
            self._failed.set_result(failed)
        return failed

    async def _kept(self, index: int, work: Work) -> ProgramState:
        checkpoint = self._options.checkpoint
        if checkpoint is None:
            return await work.arun()
        key = checkpoint.key(work)
        state = checkpoint.restored(key, work)
        if state is None:
            state = await work.arun()
            checkpoint.keep(key, state)
        else:
            self._restored.add(index)
        return state

    async def _stop(self) -> None:
        for task in self._window:
            task.cancel()
        await asyncio.gather(*self._window, return_exceptions=True)
        self._window.clear()

    def _close(self) -> None:
        if self._options.progress is not None:
            self._options.progress.close()
        if self._options.checkpoint is not None:
            self._options.checkpoint.close()


def programs_at_once(num_threads: int | Literal["auto"]) -> int:
    """ "auto": enough to keep a server busy, 96 or 16 per core."""
    if num_threads == "auto":
        return max(96, 16 * (os.cpu_count() or 1))
    if num_threads < 1:
        raise ValueError(f"num_threads must be at least 1, not {num_threads}")
    return num_threads
