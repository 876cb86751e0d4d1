"""Streams of server-sent events, and clients that go away.

Owns: the framing of events, when headers are sent, noticing that the client has closed the
connection. Must not know: what the events mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from radixserve.api.faults import envelope, is_own_cancellation
from radixserve.errors import Cancelled, EngineDead, RequestError
from radixserve.log import logger

T = TypeVar("T")
Event = dict[str, Any]

DONE = b"data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
# Characters that JSON leaves as they are, and at which some clients cut lines.
_BREAKS = {char.encode(): f"\\u{ord(char):04x}".encode() for char in "\x85\u2028\u2029"}


def frame(event: Event) -> bytes:
    """One line, whatever a client takes for the end of one."""
    data = msgspec.json.encode(event)
    for char, escaped in _BREAKS.items():
        data = data.replace(char, escaped)
    return b"data: " + data + b"\n\n"


def named_frame(event: Event) -> bytes:
    """A frame that is named by the event's type."""
    return f"event: {event['type']}\n".encode() + frame(event)


def _enveloped(error: BaseException) -> Event:
    return envelope(error)[1]


@dataclass(frozen=True, slots=True)
class Style:
    """How a dialect streams. frame: of one event. end: what comes behind the last. failed: the
    event with which a stream ends that failed, in place of `end`."""

    frame: Callable[[Event], bytes] = frame
    end: bytes = DONE
    failed: Callable[[BaseException], Event] = _enveloped


OPENAI = Style()


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled, and has ended, when the client goes away first.

    receive: of a request whose body has been read. Raises Cancelled when the client is gone.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Cancelled("the client closed the connection")
        return task.result()
    finally:
        await _end(task, gone)


async def event_stream(
    request: Request, events: AsyncGenerator[Event | None, None], style: Style = OPENAI
) -> Response:
    """`events` as a response. It exists once the first has come, so a refusal is a real 400.

    None among the events stands for acceptance and sends headers only. The stream ends as `style`
    says: with [DONE], or after an error with one event that holds its envelope.
    """
    frames = _framed(events, style)
    first = await unless_gone(request.receive, anext(frames))
    return EventStream(first, frames)


class EventStream(Response):
    """Sends frames until they end or the client goes away; then they are closed."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        sending = asyncio.ensure_future(self._send_all(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except OSError:
            logger.debug("a client closed its stream")
        finally:
            await _end(sending, gone)
            await self._rest.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        for head in (self._first,) if self._first else ():
            await send({"type": "http.response.body", "body": head, "more_body": True})
        async for piece in self._rest:
            if piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _framed(
    events: AsyncGenerator[Event | None, None], style: Style
) -> AsyncGenerator[bytes, None]:
    begun = False
    try:
        async for event in events:
            begun = True
            yield b"" if event is None else style.frame(event)
        if style.end:
            yield style.end
    except (Exception, asyncio.CancelledError) as error:
        if not begun or is_own_cancellation(error):
            raise
        if not isinstance(error, RequestError | EngineDead):
            logger.exception("a stream failed")
        yield style.frame(style.failed(error))
    finally:
        await events.aclose()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
