"""A server of the completions dialect that says "x" as often as asked, for tests of benchmarks/.

It runs in a thread of its own on a free port of this machine. Its faults are settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Peer:
    """chunk: bytes written at once, 0 for whole events. tokens_off: added to the output count.
    prompt_off: to the prompt's. cached: what usage tells, None for nothing. ends_after: an answer
    that closes the connection after so many bytes. closes: every answer ends its connection.
    drops_kept: a connection ends when it is used a second time. status: of completions. delay:
    seconds before each token. texts: of the tokens, whatever was asked for. order: what happened
    to which prompt."""

    chunk: int = 0
    tokens_off: int = 0
    prompt_off: int = 0
    cached: int | None = 0
    ends_after: int | None = None
    closes: bool = False
    drops_kept: bool = False
    status: int = 200
    delay: float = 0.0
    texts: list[str] = field(default_factory=list)
    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    order: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    connections: int = 0
    under_way: int = 0
    most_under_way: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        served = 0
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                if served and self.drops_kept:
                    break
                length = int(head.lower().partition("content-length:")[2].split()[0])
                body = await reader.readexactly(length)
                if " /v1/models " in head:
                    await self._write(writer, _counted(200, b'{"data":[{"id":"m"}]}'))
                else:
                    await self._complete(writer, json.loads(body))
                served += 1
                if self.closes or self.ends_after is not None:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _complete(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        self.bodies.append(body)
        prompt = tuple(body["prompt"])
        self.order.append(("sent", prompt))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.status != 200:
                await self._write(writer, _counted(self.status, b'{"error":{"message":"no"}}'))
                return
            close = "Connection: close\r\n" if self.closes else ""
            head = f"HTTP/1.1 200 OK\r\n{close}Content-Type: text/event-stream\r\n"
            await self._write(writer, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            await self._write(writer, _chunk(b":\n\n"))
            for text in self.texts or ["x"] * body["max_tokens"]:
                await asyncio.sleep(self.delay)
                await self._write(writer, _chunk(_event([{"index": 0, "text": text}], None)))
            self.order.append(("answered", prompt))
            await self._write(writer, _chunk(_event([], self._usage(body))))
            await self._write(writer, _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        finally:
            self.under_way -= 1

    def _usage(self, body: dict[str, Any]) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": len(body["prompt"]) + self.prompt_off,
            "completion_tokens": (len(self.texts) or body["max_tokens"]) + self.tokens_off,
        }
        if self.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached}
        return usage

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self.ends_after is not None:
            data = data[: self.ends_after]
            self.ends_after -= len(data)
        step = self.chunk or len(data) or 1
        for start in range(0, len(data), step):
            writer.write(data[start : start + step])
            await writer.drain()
            if self.chunk:
                await asyncio.sleep(0)
        if self.ends_after == 0:
            raise ConnectionResetError


@contextlib.contextmanager
def serving(peer: Peer) -> Iterator[Peer]:
    """The peer, listening."""
    ready = threading.Event()
    stop = asyncio.Event()
    loop = asyncio.new_event_loop()

    async def main() -> None:
        server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
        peer.port = server.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        server.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(0)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    try:
        assert ready.wait(10)
        yield peer
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def _event(choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
    text = json.dumps({"choices": choices, "usage": usage}, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _counted(status: int, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body
