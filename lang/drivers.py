"""Who works the branches of a run off: the thread that appends, threads, or an event loop.

Owns: the threads and tasks of a run's branches. Must not know: what a call is, states.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

from radixserve.lang.branch import APerform, Branch, Perform


class Inline:
    """Calls are made in the thread that appends them, which waits for each."""

    def __init__(self, perform: Perform) -> None:
        self._perform = perform

    def start(self, branch: Branch) -> None:
        branch.pump(self._perform, keep=Exception)

    def would_block(self) -> bool:
        return False


class Threads:
    """A branch with calls to make has a thread, from the first of them to the last."""

    def __init__(self, perform: Perform) -> None:
        self._perform = perform
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()

    def start(self, branch: Branch) -> None:
        thread = threading.Thread(
            target=self._work, args=(branch,), name="radixserve-branch", daemon=True
        )
        with self._lock:
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no thread left
            with self._lock:
                self._threads.discard(thread)
            branch.stumble(error)

    def would_block(self) -> bool:
        return False

    def join(self, timeout: float) -> None:
        """Wait for all of them, at most `timeout` seconds together."""
        end = time.monotonic() + timeout
        while threads := self._open():
            if time.monotonic() >= end:
                return
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))

    def _open(self) -> list[threading.Thread]:
        with self._lock:
            return list(self._threads)

    def _work(self, branch: Branch) -> None:
        try:
            branch.pump(self._perform)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())


class Loop:
    """A branch with calls to make has a task on `loop`; appending never waits."""

    def __init__(self, perform: APerform, loop: asyncio.AbstractEventLoop) -> None:
        self._perform = perform
        self._loop = loop
        self._thread = threading.get_ident()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, branch: Branch) -> None:
        if threading.get_ident() == self._thread:
            self._spawn(branch)
            return
        try:
            self._loop.call_soon_threadsafe(self._spawn, branch)
        except RuntimeError as error:  # the loop is closed
            branch.stumble(error)

    def would_block(self) -> bool:
        return threading.get_ident() == self._thread

    async def join(self, timeout: float) -> None:
        """Wait for all tasks, at most `timeout` seconds; call on the loop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._tasks:
                    await asyncio.wait(set(self._tasks))

    def _spawn(self, branch: Branch) -> None:
        task = self._loop.create_task(branch.apump(self._perform))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
