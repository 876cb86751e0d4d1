"""What is noted about every HTTP call: its id, its end.

Owns: X-Request-Id and traceparent, the line in the log, the count of responses. Must not know:
routes, who may call.
"""

from __future__ import annotations

import re
import time
import uuid
from typing import Protocol

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixserve.api.caller import Caller, acting_for
from radixserve.api.entrance import KEY_NAME
from radixserve.log import logger, request_id
from radixserve.metrics.trail import Origin

QUIET = frozenset({"/health", "/ready", "/metrics"})  # asked every few seconds
CLIENT_LEFT = 499

_ID = re.compile(r"[\x21-\x7e]{1,128}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}.*")


class Counter(Protocol):
    def responded(self, status: int) -> None: ...


class Access:
    """The outermost layer. logs: a line for each call; probes are told at level debug."""

    def __init__(self, app: ASGIApp, counter: Counter, *, logs: bool) -> None:
        self._app = app
        self._counter = counter
        self._logs = logs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given, parent = headers.get("x-request-id", ""), headers.get("traceparent", "")
        name = given if _ID.fullmatch(given) else uuid.uuid4().hex
        origin = Origin(
            request_id=name, traceparent=parent if _TRACEPARENT.fullmatch(parent) else ""
        )
        status = CLIENT_LEFT
        began = time.monotonic()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = name
            await send(message)

        token = request_id.set(name)
        try:
            with acting_for(Caller(origin=origin)):
                await self._app(scope, receive, noted)
        finally:
            self._counter.responded(status)
            if self._logs:
                _log(scope, status, time.monotonic() - began)
            request_id.reset(token)


def _log(scope: Scope, status: int, seconds: float) -> None:
    method, path = scope["method"], ascii(scope["path"])[1:-1]
    tell = logger.debug if scope["path"] in QUIET else logger.info
    extra = {
        "method": method,
        "path": path,
        "status": status,
        "seconds": round(seconds, 4),
        "client": (scope.get("client") or ("",))[0],
        "key": scope.get(KEY_NAME, ""),
    }
    tell("%s %s %d %.3f s %s", method, path, status, seconds, request_id.get(), extra=extra)
