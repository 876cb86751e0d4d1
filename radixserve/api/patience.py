"""How long the server waits for a client that neither sends nor reads.

Owns: the time that a body may take to come, and a client to read what was sent. Must not know: what
is sent. It stands around the routes, inside of what answers errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

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
        try:
            await self._app(scope, self._timely(receive), self._taken(send))
        except SlowReader:
            logger.info("a client stopped reading; its connection is closed")

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

    def _taken(self, send: Send) -> Send:
        """`send`, behind which the client must keep up."""
        if self._reader is None:
            return send
        seconds = self._reader

        async def taken(message: Message) -> None:
            try:
                async with asyncio.timeout(seconds):
                    await send(message)
            except TimeoutError:
                self._on_drop()
                raise SlowReader(f"nothing was read for {seconds:g} s") from None

        return taken
