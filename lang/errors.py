"""Errors that the DSL raises itself. Must not know: the runtime's own exception tree."""

from __future__ import annotations

_TRANSIENT = frozenset({0, 408, 425, 429, 500, 502, 503, 504, 529})
_LASTING = frozenset({"malformed_reply", "exhausted", "not_recorded"})


class LangError(Exception):
    """Base of the errors raised by radixserve.lang."""


class ProgramError(LangError):
    """The program uses the language wrongly: a role inside a role, an append after the end."""


class MisusedValue(ProgramError, TypeError):
    """A compiled program uses a value as what it is not: as a text, or as a list so long."""


class ProgramCancelled(LangError):
    """The run was ended from outside before this value was there."""


class DeadlineExceeded(LangError, TimeoutError):
    """A call, a program or a batch took longer than its timeout=."""


class Unsupported(LangError):
    """This backend cannot do what was asked; the message names both."""


class TypedOutputError(LangError, ValueError):
    """What the model wrote is no value of the schema; text has what it wrote."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class DynamicProgram(LangError):
    """The program cannot be compiled: what it does depends on values that a run has to make.

    filename, line: where it does so, as far as it is known.
    """

    def __init__(self, reason: str, filename: str = "", line: int = 0) -> None:
        where = f" ({filename}, line {line})" if filename else ""
        super().__init__(f"{reason}{where}")
        self.reason = reason
        self.filename = filename
        self.line = line

    def __reduce__(self) -> tuple[type[DynamicProgram], tuple[object, ...]]:
        return type(self), (self.reason, self.filename, self.line)


class GraphError(LangError, ValueError):
    """A graph of calls is malformed. pointer: JSON pointer to the place."""

    def __init__(self, pointer: str, message: str) -> None:
        super().__init__(f"{pointer or '/'}: {message}")
        self.pointer = pointer
        self.message = message

    def __reduce__(self) -> tuple[type[GraphError], tuple[object, ...]]:
        return type(self), (self.pointer, self.message)


class BackendError(LangError):
    """A backend refused or failed a call.

    status: HTTP status, 0 when no reply came. code: a stable word. param: the field at fault.
    retry_after: seconds that the backend asks to wait before the next try, or None.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type[BackendError], tuple[object, ...]]:
        return type(self), (self.status, self.code, self.message, self.param, self.retry_after)

    def __str__(self) -> str:
        where = f", {self.param}" if self.param else ""
        return f"{self.message} ({self.status or 'no reply'} {self.code}{where})"


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed in a moment: no reply, overload, a fault of the server.

    Errors of an engine in this process are known by their `status` too; its death is final.
    """
    if getattr(error, "code", None) in _LASTING:
        return False
    return getattr(error, "status", None) in _TRANSIENT
