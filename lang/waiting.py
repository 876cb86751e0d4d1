"""Waiting for something about a branch to change, in threads and on event loops.

Owns: the lock of a branch and everyone who waits on it. Must not know: what they wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Self

from radixserve.lang.errors import ProgramError


class Changes:
    """A lock with news. would_block(): a wait in this thread would keep the news from coming."""

    def __init__(self, would_block: Callable[[], bool]) -> None:
        self._condition = threading.Condition()
        self._would_block = would_block
        self._listeners: set[Callable[[], None]] = set()

    def __enter__(self) -> Self:
        self._condition.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._condition.__exit__(None, None, None)

    def notify(self) -> None:
        """With the lock held: wake everyone."""
        self._condition.notify_all()
        for listener in self._listeners:
            listener()

    def wait_for(self, is_over: Callable[[], bool]) -> None:
        """With the lock held: wait until is_over(). Raises ProgramError instead of a deadlock."""
        if is_over():
            return
        if self._would_block():
            raise ProgramError(
                "this would block the event loop that makes the program's calls; make the "
                "program an `async def` and await what it reads"
            )
        self._condition.wait_for(is_over)

    async def until(self, is_over: Callable[[], bool]) -> None:
        """wait_for() on the running loop, which goes on meanwhile. The lock is not held."""
        with self:
            if is_over():
                return
        waker = Waker()
        with self.listening(waker.wake):
            while not self._check(is_over):
                await waker.wait()

    @contextlib.contextmanager
    def listening(self, wake: Callable[[], None]) -> Iterator[None]:
        """wake() is called, in any thread and with the lock held, whenever something changes."""
        with self:
            self._listeners.add(wake)
        try:
            yield
        finally:
            with self:
                self._listeners.discard(wake)

    def _check(self, is_over: Callable[[], bool]) -> bool:
        with self:
            return is_over()


class Waker:
    """An event of the running loop that any thread may set; wait() also clears it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._event = asyncio.Event()

    def wake(self) -> None:
        if threading.get_ident() == self._thread:
            self._event.set()
            return
        with contextlib.suppress(RuntimeError):  # the loop was closed under an abandoned reader
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()
