"""The exception tree of radixserve.

Owns: every error class that crosses a border. Must not know: where an error is shown (HTTP status
codes are plain numbers here; the API turns them into replies).
"""

from __future__ import annotations


class RadixServeError(Exception):
    """Base of every error that radixserve raises on purpose."""


class ConfigError(RadixServeError):
    """A configuration value is wrong; the message names the field and what would be right."""


class ModelLoadError(RadixServeError):
    """A model cannot be loaded; the message names the file, tensor or setting at fault."""


class EngineDead(RadixServeError):
    """The engine process ended or fell silent; everything in flight has failed."""


ENGINE_RETRY_AFTER = 5.0  # seconds


class EngineAway(EngineDead):
    """The same where another engine may take its place, or it may go on: a call may be repeated."""

    status = 503
    retry_after = ENGINE_RETRY_AFTER


class RequestError(RadixServeError):
    """One request cannot be served. Ends that request and disturbs no other.

    status: HTTP status to answer with. code: a stable word for programs. param: the field at fault.
    retry_after: seconds after which trying again may help; None: it will not.
    """

    status = 400
    code = "invalid_request"
    retry_after: float | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(RequestError):
    """A field of the request is wrong or not supported."""


class ContextTooLong(RequestError):
    """Prompt, or prompt and output together, can never fit the context or the KV pool."""

    code = "context_length_exceeded"


class QueueFull(RequestError):
    """The waiting queue is at its limit; try again later."""

    status = 429
    code = "queue_full"
    retry_after = 1.0


class Cancelled(RequestError):
    """The request was aborted."""

    status = 499
    code = "cancelled"


class TimedOut(RequestError):
    """The request passed its deadline."""

    status = 504
    code = "timeout"


class Stopping(RequestError):
    """The server is about to end: another one, or this one once it is back, may serve the call."""

    status = 503
    code = "stopping"
    retry_after = ENGINE_RETRY_AFTER

    def __init__(self, message: str = "the server is stopping") -> None:
        super().__init__(message)


class InternalError(RequestError):
    """The engine failed while it served this request; the message holds the cause."""

    status = 500
    code = "internal_error"


_BY_CODE: dict[str, type[RequestError]] = {
    kind.code: kind
    for kind in (InvalidRequest, ContextTooLong, QueueFull, Cancelled, TimedOut, InternalError)
}
_BY_CODE["unsupported_schema"] = InvalidRequest  # of a constraint, refused where it is compiled


def request_error(code: str, message: str, param: str | None = None) -> RequestError:
    """The error that `code` names, rebuilt on this side of the wire."""
    return _BY_CODE.get(code, InternalError)(message, param=param, code=code)
