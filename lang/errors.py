"""Errors that the DSL raises itself. Must not know: the runtime's own exception tree."""

from __future__ import annotations


class LangError(Exception):
    """Base of the errors raised by radixserve.lang."""


class ProgramError(LangError):
    """The program uses the language wrongly: a role inside a role, an append after the end."""


class ProgramCancelled(LangError):
    """The run was ended from outside before this value was there."""


class BackendError(LangError):
    """A backend refused or failed a call.

    status: HTTP status, 0 when no reply came. code: a stable word. param: the field at fault.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param

    def __str__(self) -> str:
        where = f", {self.param}" if self.param else ""
        return f"{self.message} ({self.status or 'no reply'} {self.code}{where})"
