"""A blocking backend as seen from an event loop: each call in a thread of its own.

Owns: handing replies and chunks from such a thread to the loop, and aborting the call when the
loop's side gives up. Must not know: any backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

from radixserve.lang.backends.base import AsyncBackend, Backend, Body, Reply

_END = object()


class ThreadedBackend:
    """AsyncBackend over a Backend that has only blocking calls."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def agenerate(self, body: Body) -> Reply | list[Reply]:
        return cast("Reply | list[Reply]", await self._call(self._backend.generate, body))

    async def achoose(self, body: Body) -> Reply:
        return cast("Reply", await self._call(self._backend.choose, body))

    async def astream(self, body: Body) -> AsyncGenerator[Reply, None]:
        relay: asyncio.Queue[Any] = asyncio.Queue()
        loop, is_left = asyncio.get_running_loop(), threading.Event()

        def read() -> None:
            chunks = self._backend.stream(body)
            try:
                for chunk in chunks:
                    if is_left.is_set():
                        return
                    loop.call_soon_threadsafe(relay.put_nowait, chunk)
            finally:
                close = getattr(chunks, "close", None)
                if close is not None:
                    close()

        reading = in_thread(read)
        reading.add_done_callback(lambda _: relay.put_nowait(_END))
        reading.add_done_callback(retrieved)
        is_over = False
        try:
            while (chunk := await relay.get()) is not _END:
                is_over = (chunk.get("meta_info") or {}).get("finish_reason") is not None
                yield chunk
            await reading
        finally:
            is_left.set()
            if not is_over and not reading.done():
                self._abort(body)

    async def _call(self, work: Callable[[Body], Any], body: Body) -> Any:
        try:
            return await in_thread(lambda: work(body))
        except asyncio.CancelledError:
            self._abort(body)
            raise

    def _abort(self, body: Body) -> None:
        """Nobody waits for it: a backend that cannot even abort must not hold up the caller."""

        def abort() -> None:
            with contextlib.suppress(Exception):
                self._backend.abort(body["rid"])

        threading.Thread(target=abort, name="radixserve-abort", daemon=True).start()


def as_async(backend: Backend) -> AsyncBackend:
    """The backend itself where it has calls for event loops, else its calls in threads."""
    if all(hasattr(backend, verb) for verb in ("agenerate", "astream", "achoose")):
        return cast("AsyncBackend", backend)
    return ThreadedBackend(backend)


def retrieved(future: asyncio.Future[Any]) -> None:
    """A callback for a future whose error may find nobody left to hear of it."""
    if not future.cancelled():
        future.exception()


def in_thread(work: Callable[[], Any], name: str = "radixserve-call") -> asyncio.Future[Any]:
    """work() in a new thread, as a future of the running loop; cancelling it leaves the thread."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[Any] = loop.create_future()

    def deliver(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = context.run(work)
        except StopIteration as stop:  # a future refuses it
            error = RuntimeError("StopIteration left a call")
            error.__cause__ = stop
        except BaseException as caught:
            # A thread's border: kept here, raised to whoever awaits the future.
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
