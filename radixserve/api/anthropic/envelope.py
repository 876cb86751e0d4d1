"""How an error looks in the Anthropic dialect, and which calls are of it.

Owns: {"type": "error", "error": {type, message}, "request_id"}, the statuses that differ, the
header request-id. Must not know: routes, what raises errors.
"""

from __future__ import annotations

from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixserve.api import faults
from radixserve.log import request_id

MESSAGES = "/v1/messages"
OVERLOADED = 529
TOO_LONG = "prompt is too long: "  # what clients of that API look for
# By this the client's tool runner knows to send the whole conversation with each turn.
NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    499: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
# The server as a whole has too much to do, whoever asks.
_BUSY = frozenset({"queue_full", "too_busy", "too_many_large_bodies"})


def envelope(error: BaseException) -> tuple[int, dict[str, Any]]:
    """(status, body) for an error; its message names the field at fault."""
    status, body = faults.envelope(error)
    told = body["error"]
    message, param, code = told["message"], told["param"], told["code"]
    if code == "context_length_exceeded":
        message = f"{TOO_LONG}{message}"
    if param and param not in message:
        message = f"{param}: {message}"
    if code in _BUSY:
        status = OVERLOADED
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    said: dict[str, Any] = {"type": kind, "message": message}
    if (param, code) == ("thread", "unsupported_parameter"):
        said["details"] = NO_THREADS
    return status, {"type": "error", "error": said, "request_id": request_id.get() or None}


def error_event(error: BaseException) -> dict[str, Any]:
    """The last event of a stream that failed."""
    return envelope(error)[1]


class AnthropicCalls:
    """Gives calls of the dialect its envelope, whoever answers them, and the header request-id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == MESSAGES or path.startswith(f"{MESSAGES}/")):
            await self._app(scope, receive, send)
            return
        scope[faults.ENVELOPE] = envelope

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start" and request_id.get():
                MutableHeaders(scope=message)["request-id"] = request_id.get()
            await send(message)

        await self._app(scope, receive, named)
