"""An event loop in a thread of its own, for callers that block.

Owns: the loop's thread, and that nothing is left on the loop when it closes. Must not know:
programs, backends.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar, cast

T = TypeVar("T")


class Portal:
    """A context manager; run() may be called from any thread but the loop's."""

    def __init__(self, name: str = "radixserve-loop") -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and wait; an interrupt of the caller cancels it."""
        future = asyncio.run_coroutine_threadsafe(_guarded(work), self.loop)
        try:
            result, stop = future.result()
        except concurrent.futures.CancelledError:
            raise
        except BaseException:
            future.cancel()
            raise
        if stop is not None:
            raise stop
        return cast("T", result)

    def close(self) -> None:
        """Cancel what runs, close what holds on to the loop, end the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(_clear())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()


async def _guarded(work: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """What would end the loop, and all who wait on it, goes to the caller instead."""
    try:
        return await work, None
    except (KeyboardInterrupt, SystemExit) as stop:
        return None, stop


async def _clear() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
