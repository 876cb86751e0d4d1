"""One HTTP call over a connection of its own, cheap enough for hundreds at once.

Owns: bytes of HTTP/1.1 and of server-sent events. Must not know: what is asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


class Gone(Exception):
    """The server closed the connection before the answer was whole."""


class Call:
    """An answer as it comes. status: 0 before head() was read."""

    def __init__(self, path: str, reader: asyncio.StreamReader) -> None:
        self.path = path
        self.status = 0
        self._reader = reader
        self._headers: dict[str, str] = {}

    async def head(self) -> int:
        """Read status and headers."""
        try:
            raw = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Gone(f"{self.path}: no answer ({error})") from None
        first, *lines = raw.split("\r\n")
        self.status = int(first.split()[1])
        for line in lines:
            name, _, value = line.partition(":")
            self._headers[name.lower()] = value.strip()
        return self.status

    async def text(self) -> str:
        return b"".join([piece async for piece in self._pieces()]).decode()

    async def json(self) -> Any:
        return json.loads(await self.text())

    async def events(self) -> AsyncIterator[str]:
        """The data of each event of a stream; raises Gone where the stream is cut off."""
        left = b""
        async for piece in self._pieces():
            *whole, left = (left + piece).split(b"\n\n")
            for event in whole:
                yield event.removeprefix(b"data: ").decode()

    async def _pieces(self) -> AsyncIterator[bytes]:
        try:
            if "content-length" in self._headers:
                yield await self._reader.readexactly(int(self._headers["content-length"]))
                return
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Gone(f"{self.path}: cut off ({error})") from None


class Talk:
    """A server to call."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    @asynccontextmanager
    async def post(
        self, path: str, body: Any, key: str, *, wait: bool = True
    ) -> AsyncIterator[Call]:
        """body: bytes are sent as they are, anything else as JSON. wait: for the head."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._call("POST", path, key, data, wait) as call:
            yield call

    @asynccontextmanager
    async def get(self, path: str, key: str = "") -> AsyncIterator[Call]:
        async with self._call("GET", path, key, b"", True) as call:
            yield call

    @asynccontextmanager
    async def _call(
        self, method: str, path: str, key: str, data: bytes, wait: bool
    ) -> AsyncIterator[Call]:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=2**22)
        try:
            head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
            head += f"Authorization: Bearer {key}\r\n\r\n" if key else "\r\n"
            writer.write(head.encode() + data)
            call = Call(path, reader)
            if wait:
                await call.head()
            yield call
        finally:
            writer.transport.abort()
