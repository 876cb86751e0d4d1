"""What a mock says: its replies as a list, a map or a function, for gens and for selects.

Owns: which reply belongs to a call. Must not know: tokens, log-probabilities, texts that are made
up.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from radixserve.lang.backends.base import Body
from radixserve.lang.errors import BackendError

Told = str | list[str]
FullFunction = Callable[[str, Body], Told]
Function = Callable[[str], Told] | FullFunction


class Script(Protocol):
    """prompt: the text of the prompt, roles as <user>."""

    def say(self, prompt: str, body: Body) -> Told:
        """The reply to a gen. Raises BackendError `exhausted` where there is none."""
        ...

    def pick(self, prompt: str, body: Body, choices: Sequence[str]) -> str | None:
        """The reply to a select, one of `choices`; None where there is none."""
        ...


def as_script(replies: Iterable[str] | Mapping[str, str] | Function) -> Script:
    if isinstance(replies, Mapping):
        return _Map(dict(replies))
    return _Called(replies) if callable(replies) else _List(replies)


class _Map:
    def __init__(self, replies: dict[str, str]) -> None:
        self._replies = replies

    def say(self, prompt: str, _: Body) -> str:
        reply = self._found(prompt, self._replies)
        if reply is None:
            raise _exhausted(f"the mock has no reply for {prompt[-80:]!r}")
        return reply

    def pick(self, prompt: str, _: Body, choices: Sequence[str]) -> str | None:
        fitting = [key for key, reply in self._replies.items() if reply in choices]
        return self._found(prompt, fitting)

    def _found(self, prompt: str, keys: Iterable[str]) -> str | None:
        found = [key for key in keys if key in prompt]
        if not found:
            return None
        return self._replies[max(found, key=lambda key: prompt.rfind(key) if key else -1)]


class _List:
    def __init__(self, replies: Iterable[str]) -> None:
        self._lock, self._left = threading.Lock(), iter(list(replies))

    def say(self, prompt: str, _: Body) -> str:
        reply = self._next()
        if reply is None:
            raise _exhausted(f"the mock has no reply left for {prompt[-80:]!r}")
        return reply

    def pick(self, _: str, __: Body, choices: Sequence[str]) -> str | None:
        reply = self._next()
        if reply is not None and reply not in choices:
            raise BackendError(
                400,
                "invalid_reply",
                f"the mock's next reply, {reply!r}, is none of the choices {list(choices)!r}",
            )
        return reply

    def _next(self) -> str | None:
        with self._lock:
            return next(self._left, None)


class _Called:
    def __init__(self, function: Function) -> None:
        self._takes_body = len(inspect.signature(function).parameters) > 1
        self._function = cast("Callable[..., Told]", function)

    def say(self, prompt: str, body: Body) -> Told:
        return self._function(prompt, body) if self._takes_body else self._function(prompt)

    def pick(self, prompt: str, body: Body, choices: Sequence[str]) -> str | None:
        reply: Any = self.say(prompt, body)
        return reply if reply in choices else choices[0]


def _exhausted(message: str) -> BackendError:
    return BackendError(500, "exhausted", message)
