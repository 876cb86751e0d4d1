"""A streaming completions client that costs little, for measuring servers on the same machine.

Owns: HTTP/1.1 over asyncio, server-sent events, when they came, the counts that a server tells.
Must not know: workloads, rounds, radixserve. Bodies are encoded before the clock starts; of the
events of an answer all but the last few are only looked at, not parsed.
"""

from __future__ import annotations

import asyncio
import re
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec

_COUNTS = re.compile(rb'"usage":\s*\{')
_MAX_TAIL = 2**17


class PeerError(Exception):
    """A server that cannot be measured: it refused, broke off, or answered something else."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server. base: the path in front of /v1. model: the name it serves the model under."""

    name: str
    host: str
    port: int
    base: str = ""
    model: str = ""

    @classmethod
    def parse(cls, given: str, default_name: str) -> Self:
        """From "URL" or "URL=name". Raises ValueError."""
        url, _, name = given.partition("=")
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{given!r} is no http URL, or URL=name")
        base = parts.path.rstrip("/").removesuffix("/v1")
        return cls(name or default_name, parts.hostname, parts.port or 80, base)

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The bytes of one request."""
        head = (
            f"{method} {self.base}{path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def completion(
        self, prompt: Sequence[int], tokens: int, schema: dict[str, Any] | None = None
    ) -> bytes:
        """The bytes that ask for exactly `tokens` greedy tokens after the ids of `prompt`, or for
        JSON of at most so many that fits the schema."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if schema is None:
            body["ignore_eos"] = True
        else:
            json_schema = {"name": "record", "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": json_schema}
        return self.request("POST", "/v1/completions", msgspec.json.encode(body))


@dataclass(frozen=True, slots=True)
class Reply:
    """What one call gave. Times are time.perf_counter() in seconds.

    sent: the request was written. first: the first event came. last: the last one with output.
    cached_tokens: None where the server does not tell. events: the end of the stream, all of a
    short one.
    """

    sent: float
    first: float
    last: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    events: bytes = b""

    @property
    def text(self) -> str:
        """The text of a short answer."""
        found = []
        for event in self.events.split(b"\n\n"):
            if event.startswith(b"data: {"):
                choices = msgspec.json.decode(event[6:]).get("choices") or [{}]
                found.append(choices[0].get("text") or "")
        return "".join(found)


class Connection(asyncio.Protocol):
    """One kept connection; one call at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._transport: asyncio.Transport | None = None
        self._answer: _Answer | None = None
        self._done: asyncio.Future[None] | None = None

    async def complete(self, request: bytes, timeout: float) -> Reply:
        """Send a completion and read its stream. Raises PeerError."""
        answer = await self._exchange(request, timeout)
        return answer.reply(self._endpoint.name)

    async def get(self, path: str, timeout: float) -> Any:
        """The JSON at `path`. Raises PeerError."""
        answer = await self._exchange(self._endpoint.request("GET", path), timeout)
        return answer.json(self._endpoint.name)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _exchange(self, request: bytes, timeout: float) -> _Answer:
        name = self._endpoint.name
        for is_last_try in (False, True):
            if self._transport is None or self._transport.is_closing():
                await self.open()
            assert self._transport is not None
            self._done = asyncio.get_running_loop().create_future()
            self._answer = answer = _Answer()
            self._transport.write(request)
            try:
                async with asyncio.timeout(timeout):
                    await self._done
            except TimeoutError:
                self.close()
                raise PeerError(f"{name}: no complete answer in {timeout:.0f} s") from None
            finally:
                self._answer = None
            if answer.is_complete:
                if answer.wants_close:
                    self.close()
                return answer
            # A kept connection may end just as it is used again; an answer begun may not.
            if is_last_try or answer.has_begun:
                break
        raise PeerError(f"{name}: the connection ended within an answer: {answer.excerpt()}")

    async def open(self) -> None:
        """Connect ahead of the first call. Raises PeerError."""
        loop = asyncio.get_running_loop()
        where = self._endpoint
        try:
            await loop.create_connection(lambda: self, where.host, where.port)
        except OSError as error:
            raise PeerError(f"{where.name}: cannot connect: {error}") from error

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is not None and answer.feed(data, time.perf_counter()):
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._answer is not None:
            self._answer.end()
        self._wake()

    def _wake(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


class _Answer:
    """One HTTP answer as its bytes come: status, framing, body, times of its events."""

    def __init__(self) -> None:
        self.is_complete = False
        self.wants_close = False
        self.status = 0
        self._is_stream = False
        self._sent = time.perf_counter()
        self._first = 0.0
        self._last = 0.0
        self._head = b""
        self._frame: _Chunked | _Counted | None = None
        self._tail = b""

    @property
    def has_begun(self) -> bool:
        return bool(self._head)

    def feed(self, data: bytes, now: float) -> bool:
        """Take what came; True once the answer is complete."""
        if self._frame is None:
            self._head += data
            head, found, data = self._head.partition(b"\r\n\r\n")
            if not found:
                return False
            self._read_head(head)
        assert self._frame is not None
        body = self._frame.feed(data)
        if body:
            self._take(body, now)
        self.is_complete = self._frame.is_complete
        return self.is_complete

    def end(self) -> None:
        """The connection has closed, which ends a body that has no other end."""
        if isinstance(self._frame, _Counted) and self._frame.left is None:
            self.is_complete = True

    def reply(self, name: str) -> Reply:
        """Raises PeerError unless it is a whole stream of a completion."""
        if self.status != 200 or not self._first or b"data: [DONE]" not in self._tail:
            raise PeerError(f"{name}: status {self.status}: {self.excerpt()}")
        for event in reversed(self._tail.split(b"\n\n")):
            if _COUNTS.search(event):
                usage = msgspec.json.decode(event[event.index(b"{") :])["usage"]
                details = usage.get("prompt_tokens_details") or {}
                return Reply(
                    self._sent,
                    self._first,
                    self._last,
                    usage["prompt_tokens"],
                    usage["completion_tokens"],
                    details.get("cached_tokens"),
                    self._tail,
                )
        raise PeerError(f"{name}: a stream without usage: {self.excerpt()}")

    def json(self, name: str) -> Any:
        if self.status != 200:
            raise PeerError(f"{name}: status {self.status}: {self.excerpt()}")
        return msgspec.json.decode(self._tail)

    def excerpt(self) -> str:
        return self._tail[-500:].decode("utf-8", "replace") or "nothing"

    def _read_head(self, head: bytes) -> None:
        status, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(status.split()[1])
        fields = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        self.wants_close = fields.get("connection", "").lower() == "close"
        self._is_stream = fields.get("content-type", "").startswith("text/event-stream")
        if "chunked" in fields.get("transfer-encoding", "").lower():
            self._frame = _Chunked()
        else:
            length = fields.get("content-length")
            self._frame = _Counted(None if length is None else int(length))

    def _take(self, body: bytes, now: float) -> None:
        # Comments keep a connection alive; the event with the counts and the end mark carry no
        # output.
        if b'"text"' in body:
            self._first = self._first or now
            self._last = now
        self._tail += body
        if self._is_stream and len(self._tail) > _MAX_TAIL:
            self._tail = self._tail[-_MAX_TAIL // 2 :]


class _Counted:
    """A body of `left` more bytes; None: up to the end of the connection."""

    def __init__(self, left: int | None) -> None:
        self.left = left
        self.is_complete = left == 0

    def feed(self, data: bytes) -> bytes:
        if self.left is not None:
            data = data[: self.left]
            self.left -= len(data)
            self.is_complete = self.left == 0
        return data


class _Chunked:
    """A chunked body."""

    def __init__(self) -> None:
        self.is_complete = False
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        data = self._rest + data if self._rest else data
        parts = []
        at = 0
        while (line := data.find(b"\r\n", at)) >= 0:
            size = int(data[at:line].partition(b";")[0], 16)
            end = line + 2 + size
            if len(data) < end + 2:
                break
            parts.append(data[line + 2 : end])
            at = end + 2
            self.is_complete = size == 0
        self._rest = data[at:]
        return b"".join(parts)
