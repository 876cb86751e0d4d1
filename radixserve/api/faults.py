"""How an error looks over HTTP: {"error": {message, type, param, code}} unless a dialect has put
an envelope of its own into the call's scope.

Owns: the envelope, the status of each kind of error, the last resort for errors that nobody
expected. Must not know: routes, dialects.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixserve.errors import ENGINE_RETRY_AFTER, EngineDead, RequestError
from radixserve.log import logger

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    499: "cancelled_error",
}
MAX_SAID = 2000  # characters
ENVELOPE = "radixserve.envelope"  # in a call's scope: the Envelope of its dialect

Envelope = Callable[[BaseException], tuple[int, dict[str, Any]]]
_FRAMEWORK_CODES = {404: "not_found", 405: "method_not_allowed"}


class BodyTooLarge(RequestError):
    """The body is longer than config.http.max_body."""

    status = 413
    code = "body_too_large"


class Unauthorized(RequestError):
    """There is no valid key."""

    status = 401
    code = "invalid_api_key"


class Forbidden(RequestError):
    """The key is valid and not enough."""

    status = 403
    code = "forbidden"


class RateLimited(RequestError):
    """The caller, or all callers together, use as much as they may."""

    status = 429
    code = "rate_limited"

    def __init__(self, message: str, *, code: str, retry_after: float = 1.0) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class Unavailable(RequestError):
    """The server does not take calls now."""

    status = 503
    code = "unavailable"
    retry_after = ENGINE_RETRY_AFTER


class BodyTimeout(RequestError):
    """The body did not come within config.http.body_timeout."""

    status = 408
    code = "body_timeout"


class NotFound(RequestError):
    """There is no such thing; `code` says which kind."""

    status = 404
    code = "not_found"


def envelope(error: BaseException) -> tuple[int, dict[str, Any]]:
    """(status, body) for an error. What nobody expected is a 500 that tells no details."""
    match error:
        case RequestError():
            return error.status, _body(error.status, error.message, error.param, error.code)
        case EngineDead():
            return 503, _body(503, f"the engine is not running: {error}", None, "engine_dead")
        case HTTPException():
            code = _FRAMEWORK_CODES.get(error.status_code)
            return error.status_code, _body(error.status_code, str(error.detail), None, code)
        case _:
            return 500, _body(
                500, "internal error; the server's log has it", None, "internal_error"
            )


def fault(error: BaseException, scope: Scope | None = None) -> Response:
    """The response to an error. scope: of the call that failed."""
    told: Envelope = envelope if scope is None else scope.get(ENVELOPE, envelope)
    status, body = told(error)
    return answer(body, status=status, headers=_headers(error))


def _headers(error: BaseException) -> Mapping[str, str]:
    match error:
        case BodyTimeout():
            return {"Connection": "close"}
        case Unauthorized():
            return {"WWW-Authenticate": "Bearer"}
        case RequestError(retry_after=float() as seconds):
            return {"Retry-After": str(max(1, math.ceil(seconds)))}
        case EngineDead():
            return {"Retry-After": f"{ENGINE_RETRY_AFTER:.0f}"}
        case HTTPException(headers=headers) if headers:
            return headers
        case _:
            return {}


def answer(
    body: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON response."""
    return Response(
        msgspec.json.encode(body), status, media_type="application/json", headers=headers
    )


def is_own_cancellation(error: BaseException) -> bool:
    """Whether `error` ends the running task itself. A CancelledError that comes out of something
    which the task awaits is a fault like any other."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def install(app: FastAPI) -> None:
    """Give the framework's own errors and ours the envelope."""

    async def known(request: Request, error: Exception) -> Response:
        return fault(error, request.scope)

    for kind in (RequestError, EngineDead, HTTPException):
        app.add_exception_handler(kind, known)
    app.add_middleware(LastResort)


class LastResort:
    """Answers 500 where a handler failed in a way that nobody expected, and logs why."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except (Exception, asyncio.CancelledError) as error:
            if is_own_cancellation(error):
                raise
            logger.exception("%s %s failed", scope["method"], ascii(scope["path"]))
            if not started:
                await fault(error, scope)(scope, receive, send)


def _body(status: int, message: str, param: str | None, code: str | None) -> dict[str, Any]:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    said = {"message": message, "type": kind, "param": param, "code": code}
    return {"error": {name: printable(value) for name, value in said.items()}}


def printable(value: str | None) -> str | None:
    """Errors may quote what a client sent: of any length, and half a surrogate pair does not
    encode."""
    if value is None:
        return None
    short = value if len(value) <= MAX_SAID else value[:MAX_SAID] + ".."
    return short.encode("utf-8", "backslashreplace").decode()
