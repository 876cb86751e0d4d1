"""How long the server waits for a client that neither sends nor reads.

Owns: the time that a body may take to come, and a client to read what was sent. Must not know: what
is sent. It stands around the routes, inside of what answers errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixserve.api.faults import BodyTimeout
from radixserve.log import logger


class SlowReader(ConnectionError):
    """The client does not take what it asked for; its connection is given up."""


class Patience:
    """body, reader: seconds, 0 for any. on_drop: is called for each client that stopped reading."""

    def __init__(
        self, app: ASGIApp, *, body: float, reader: float, on_drop: Callable[[], None]
    ) -> None:
        self._app = app
        self._body = body or None
        self._reader = reader or None
        self._on_drop = on_drop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._reader is None:
            await self._app(scope, self._timely(receive), send)
            return
        watch = _Watch(send, self._reader, self._on_drop)
        try:
            await self._app(scope, self._timely(receive), watch.send)
        except SlowReader:
            logger.info("a client stopped reading; its connection is closed")
        finally:
            watch.close()

    def _timely(self, receive: Receive) -> Receive:
        """`receive`, whose body must be there in time."""
        if self._body is None:
            return receive
        seconds = self._body
        deadline = asyncio.get_running_loop().time() + seconds
        is_complete = False

        async def timely() -> Message:
            nonlocal is_complete
            if is_complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise BodyTimeout(f"the body did not come within {seconds:g} s") from None
            is_complete = not message.get("more_body", False)
            return message

        return timely


class _Watch:
    """Sends the messages of one answer, and gives up when one of them takes too long.

    A timer for each message would cost more than most of them do; there is one for all, which looks
    at when the message under way was begun.
    """

    def __init__(self, send: Send, seconds: float, on_drop: Callable[[], None]) -> None:
        self._send = send
        self._seconds = seconds
        self._on_drop = on_drop
        self._loop = asyncio.get_running_loop()
        self._began: float | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_late = False
        self._timer = self._loop.call_later(seconds, self._look)

    async def send(self, message: Message) -> None:
        """Raises SlowReader when the client has not taken what was there before in time."""
        self._task = task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        self._began = self._loop.time()
        try:
            await self._send(message)
        except asyncio.CancelledError:
            if self._is_late and task is not None and task.uncancel() <= cancels:
                self._on_drop()
                raise SlowReader(f"nothing was read for {self._seconds:g} s") from None
            raise
        finally:
            self._began = None

    def close(self) -> None:
        """No message will follow."""
        self._timer.cancel()

    def _look(self) -> None:
        left = self._seconds
        if self._began is not None:
            left -= self._loop.time() - self._began
            if left <= 0 and self._task is not None:
                self._is_late = True
                self._task.cancel()
                return
        self._timer = self._loop.call_later(max(left, 0.001), self._look)
