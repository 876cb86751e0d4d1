"""Tools that a model may call, and what it says where it may.

Owns: what a tool is, which of them a gen may call, the value of such a gen. Must not know: what
tools are made of, states, how a call is written or enforced.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import inspect
import json
import pathlib
import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from radixserve.lang.errors import ProgramError, TypedOutputError

MODES = ("auto", "required", "none")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tool:
    """spec: as OpenAI's chat has it, {"type": "function", "function": {"name", ..}}. run: what
    call.run() does with the arguments; None where there is nothing to run.
    """

    spec: dict[str, Any]
    run: Callable[[dict[str, Any]], Any] | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return str(self.spec["function"]["name"])


@dataclass(frozen=True)
class ToolCall:
    """A call that the model made. arguments: by name. id: what rs.tool() answers it by.

    run(): the result of the Python function that the tool was, or the object of the class; a
    coroutine where the function is async.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    _run: Callable[[dict[str, Any]], Any] | None = field(default=None, compare=False, repr=False)

    def run(self) -> Any:
        """Raises ProgramError where the tool was given as a dict, or the call was kept (a pickle, a
        checkpoint); TypedOutputError where the arguments do not fit it (of a backend that does not
        enforce them), and what it raises."""
        if self._run is None:
            raise ProgramError(
                f"{self.name} was given as a dict, so there is no function to run; a call that was "
                f"kept, in a checkpoint, say, has none either"
            )
        return self._run(self.arguments)

    def to_json(self) -> dict[str, Any]:
        """As OpenAI's chat writes it; arguments are JSON text."""
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        function = {"name": self.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}

    def __str__(self) -> str:
        return f"{self.name}({json.dumps(self.arguments, ensure_ascii=False)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the function, which may be no one's to pickle."""
        return ToolCall, (self.name, self.arguments, self.id)


class Turn(str):
    """What the model said in a turn in which it could call tools: its text, with `calls` beside.

    value: the object, where gen() has a schema= and the model answered instead of calling; else
    None. Two turns are equal where texts and calls are; a turn with calls equals no plain str.
    """

    calls: tuple[ToolCall, ...]
    value: Any

    def __new__(cls, text: str = "", calls: Iterable[ToolCall] = (), value: Any = None) -> Turn:
        made = super().__new__(cls, text)
        made.calls = tuple(calls)
        made.value = value
        return made

    @property
    def text(self) -> str:
        return str(self)

    def to_json(self) -> dict[str, Any]:
        """text, and calls with the arguments as objects."""
        return {"text": self.text, "calls": [portable(call) for call in self.calls]}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        return str(self) == str(other) and self.calls == getattr(other, "calls", ())

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return super().__hash__()

    def __repr__(self) -> str:
        return f"Turn({str(self)!r}, calls={list(self.calls)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Turn, (str(self), self.calls, self.value)


def portable(value: Any) -> Any:
    """A variable's value as JSON has it: turns become objects of text and calls."""
    match value:
        case Turn():
            return value.to_json()
        case ToolCall():
            return {"id": value.id, "name": value.name, "arguments": value.arguments}
        case list() | tuple() if type(value) in (list, tuple):
            return type(value)(portable(each) for each in value)
        case dict() if type(value) is dict:
            return {name: portable(each) for name, each in value.items()}
        case _:
            return value


@dataclass(frozen=True, slots=True)
class Calling:
    """What a gen may call. tools: None for all that the conversation has. choice: tool_choice as
    OpenAI's chat has it; None is "auto". many: several calls in one turn.
    """

    tools: tuple[Tool, ...] | None
    choice: str | dict[str, Any] | None = None
    many: bool = True

    def fields(self, tools: tuple[Tool, ...]) -> dict[str, Any]:
        """The fields of a call's body. tools: those of the conversation. Raises ProgramError where
        the choice is none of them."""
        own = tools if self.tools is None else self.tools
        known = {tool.name for tool in own}
        for name in named_in(self.choice):
            if name not in known:
                raise ProgramError(f"tool_choice names {name!r}; tools: {', '.join(sorted(known))}")
        said: dict[str, Any] = {"tools": [tool.spec for tool in own]}
        if self.choice is not None:
            said["tool_choice"] = self.choice
        return said if self.many else said | {"parallel_tool_calls": False}


def named_in(choice: str | dict[str, Any] | None) -> list[str]:
    """The functions that a tool_choice names."""
    match choice:
        case {"type": "function", "function": {"name": name}}:
            return [name]
        case {"type": "allowed_tools", "allowed_tools": {"tools": list(tools)}}:
            return [name for each in tools for name in named_in(each)]
        case _:
            return []


def result_text(result: Any) -> str:
    """The text of a call's result: itself, or JSON. Raises TypeError where it is neither."""
    if isinstance(result, str):
        return result
    try:
        return json.dumps(portable(result), ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"the result of a tool is a text or JSON: {error}") from None


def _plain(value: object) -> Any:
    """What stands for an object in JSON: of a pydantic model, a dataclass, an Enum, a date or time
    (ISO 8601), a Decimal (its digits), a UUID, a path."""
    if not isinstance(value, type):
        if hasattr(value, "model_dump"):
            return value.model_dump(mode="json")
        if dataclasses.is_dataclass(value):
            return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        if isinstance(value, enum.Enum):
            return value.value
        if isinstance(value, datetime.date | datetime.time):
            return value.isoformat()
        if isinstance(value, decimal.Decimal | uuid.UUID | pathlib.PurePath):
            return str(value)
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError("it is a coroutine: await call.run() where the tool is async")
    raise TypeError(f"{type(value).__name__} is no JSON")


def check_name(name: object, at: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{at}: a tool's name is 1 to 64 letters, digits, _ or -, not {name!r}")
    return name


def turn_of(
    text: str, calls: list[dict[str, Any]], tools: Iterable[Tool], read: Callable[[str], Any] | None
) -> Turn:
    """The value of a gen. calls: as OpenAI's chat has them. read: of the text that answers.

    Raises TypedOutputError for arguments that are no JSON, and what `read` raises.
    """
    runs = {tool.name: tool.run for tool in tools}
    made = []
    for call in calls:
        function = call["function"]
        name, written = function["name"], function["arguments"] or "{}"
        try:
            arguments = json.loads(written)
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise TypedOutputError(f"{written!r} are no arguments of {name}", written)
        made.append(ToolCall(name, arguments, call["id"], runs.get(name)))
    return Turn(text, made, read(text) if read is not None and not made else None)
