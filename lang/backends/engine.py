"""A backend on an engine in this process.

Owns: reading an engine's blocking iterator of chunks to its end. Must not know: the engine; it is
given an object with the verbs of EngineLink.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Protocol, cast

from radixserve.lang.backends.base import Body, Reply
from radixserve.lang.errors import BackendError


class EngineLink(Protocol):
    """submit: chunks of one call, the final reply last; without "stream" only that."""

    def submit(self, body: Body) -> Iterator[Any]: ...

    def abort(self, rid: str) -> None: ...

    def flush_cache(self) -> Any: ...

    def get_server_info(self) -> dict[str, Any]: ...


class EngineBackend:
    """The engine's errors are passed on as they are."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link

    def generate(self, body: Body) -> Reply | list[Reply]:
        return cast("Reply | list[Reply]", self._last(body))

    def choose(self, body: Body) -> Reply:
        return cast("Reply", self._last(body))

    def stream(self, body: Body) -> Iterator[Reply]:
        chunks = self._link.submit(body)
        try:
            yield from chunks
        finally:
            _close(chunks)

    def warm(self, body: Body) -> Reply:
        return cast("Reply", self._last(body))

    def abort(self, rid: str) -> None:
        self._link.abort(rid)

    def flush_cache(self) -> None:
        self._link.flush_cache()

    def get_server_info(self) -> dict[str, Any]:
        return self._link.get_server_info()

    def _last(self, body: Body) -> Any:
        chunks = self._link.submit(body)
        reply = None
        try:
            for chunk in chunks:
                reply = chunk
        finally:
            _close(chunks)
        if reply is None:
            raise BackendError(502, "malformed_reply", f"the engine gave no reply to {body['rid']}")
        return reply


class AsyncEngineBackend(EngineBackend):
    """An engine that has coroutines too: async_generate(**body) and async_stream(**body)."""

    async def agenerate(self, body: Body) -> Reply | list[Reply]:
        return cast("Reply | list[Reply]", await self._engine.async_generate(**body))

    async def achoose(self, body: Body) -> Reply:
        return cast("Reply", await self._engine.async_generate(**body))

    async def astream(self, body: Body) -> AsyncGenerator[Reply, None]:
        async with contextlib.aclosing(self._engine.async_stream(**body)) as chunks:
            async for chunk in chunks:
                yield chunk

    @property
    def _engine(self) -> Any:
        return self._link


class ProgramEngineBackend(AsyncEngineBackend):
    """An engine that runs whole programs, too: async_program(body) and its company."""

    def program(self, body: Body) -> dict[str, Any]:
        return cast("dict[str, Any]", self._engine.program(body))

    async def aprogram(self, body: Body) -> dict[str, Any]:
        return cast("dict[str, Any]", await self._engine.async_program(body))

    async def astream_program(self, body: Body) -> AsyncGenerator[dict[str, Any], None]:
        async with contextlib.aclosing(self._engine.async_stream_program(body)) as events:
            async for event in events:
                yield event


def _close(chunks: Iterator[Any]) -> None:
    close = getattr(chunks, "close", None)
    if close is not None:
        close()
