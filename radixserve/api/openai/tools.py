"""The tools of a chat body.

Owns: what tools, tool_choice and parallel_tool_calls may say, which calls they allow. Must not
know: how calls are written, messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from radixserve.api.openai.schema import ChatRequest
from radixserve.errors import InvalidRequest
from radixserve.native.fields import read
from radixserve.text.conversation import strings_in
from radixserve.text.tokenizer import check_text

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Beside one of these, more than the properties decides which arguments there may be.
_OPENING = frozenset(
    {"additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties",
     "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$dynamicRef",
     "dependentSchemas", "dependencies"}
)  # fmt: skip

Mode = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class Tool:
    """schema: of its arguments. place: where the client gave that."""

    name: str
    schema: dict[str, Any]
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """What a body says of tools.

    shown: as the chat template is to have them. tools: those that may be called. mode: whether
    a call may or must come. many: several may. field: what names the mode.
    """

    shown: tuple[dict[str, Any], ...] = ()
    tools: tuple[Tool, ...] = ()
    mode: Mode = "none"
    many: bool = True
    field: str = "tool_choice"

    @property
    def names(self) -> frozenset[str]:
        """Of the functions that an output may call."""
        return frozenset() if self.mode == "none" else frozenset(tool.name for tool in self.tools)


class _Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    function: dict[str, Any]


class _Function(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """strict: taken; arguments satisfy the schema whatever it says."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Choice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    function: dict[str, Any] | None = None
    allowed_tools: dict[str, Any] | None = None


class _Named(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str


class _Allowed(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


def toolbox_of(given: ChatRequest) -> Toolbox:
    """Raises InvalidRequest naming the field. Whether the schemas can be enforced is not looked
    at."""
    if len(given.tools) > MAX_TOOLS:
        raise InvalidRequest(
            f"tools has {len(given.tools)} entries, {MAX_TOOLS} are possible", param="tools"
        )
    tools = [_tool(raw, f"tools[{i}]") for i, raw in enumerate(given.tools)]
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        if tool.name in seen:
            raise InvalidRequest(
                f"two tools are called {tool.name}", param=f"tools[{i}].function.name"
            )
        seen.add(tool.name)
    return _chosen(given, tools)


def _tool(raw: object, at: str) -> Tool:
    outer = read(_Tool, raw, at=at)
    if outer.type != "function":
        raise InvalidRequest(
            f"{at}.type is function, not {outer.type!a:.60}",
            param=f"{at}.type",
            code="unsupported_parameter",
        )
    place = f"{at}.function"
    function = read(_Function, outer.function, at=place)
    for text in strings_in(raw):
        check_text(text, at)
    if not _NAME.fullmatch(function.name):
        raise InvalidRequest(
            f"{place}.name is 1 to 64 letters, digits, _ or -, not {function.name!a:.80}",
            param=f"{place}.name",
        )
    place += ".parameters"
    return Tool(function.name, _schema(function.parameters, place), place)


def _schema(given: dict[str, Any] | None, place: str) -> dict[str, Any]:
    """The schema that arguments satisfy: an object, and where only properties say which ones there
    are, no others."""
    if given is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if given.get("type", "object") != "object":
        raise InvalidRequest(
            f"{place}.type is object, not {given['type']!a:.60}", param=f"{place}.type"
        )
    schema = {"type": "object", **given}
    if "properties" in given and not _OPENING & given.keys() and _names_all(given):
        schema["additionalProperties"] = False
    return schema


def _names_all(given: dict[str, Any]) -> bool:
    """Every argument that must be there is a property."""
    match given:
        case {"properties": dict(properties), "required": list(required)}:
            return set(map(str, required)) <= properties.keys()
        case {"properties": dict()}:
            return "required" not in given
    return False


def _chosen(given: ChatRequest, tools: Sequence[Tool]) -> Toolbox:
    mode: Mode = "auto"
    choice, many = given.tool_choice, given.parallel_tool_calls
    if isinstance(choice, dict):
        return _chosen_by_object(choice, given, tools)
    match choice:
        case None:
            mode = "auto"
        case "none" | "auto" | "required":
            mode = choice
        case _:
            raise InvalidRequest(
                f"tool_choice is none, auto, required or an object, not {choice!a:.60}",
                param="tool_choice",
            )
    if not tools:
        _need_tools(mode == "required")
        return Toolbox()
    return Toolbox(shown=tuple(given.tools), tools=tuple(tools), mode=mode, many=many)


def _chosen_by_object(raw: dict[str, Any], given: ChatRequest, tools: Sequence[Tool]) -> Toolbox:
    choice = read(_Choice, raw, at="tool_choice")
    _need_tools(not tools)
    shown = tuple(given.tools)
    match choice:
        case _Choice(type="function", function=dict(function), allowed_tools=None):
            at = "tool_choice.function"
            name = read(_Named, function, at=at).name
            named = _named(name, tools, f"{at}.name")
            return Toolbox(shown=shown, tools=(named,), mode="required", many=False)
        case _Choice(type="allowed_tools", function=None, allowed_tools=dict(allowed)):
            return _allowed(allowed, given, tools)
    raise InvalidRequest(
        "tool_choice is {type: function, function: {name}} or {type: allowed_tools, "
        "allowed_tools: {mode, tools}}",
        param="tool_choice",
    )


def _allowed(raw: dict[str, Any], given: ChatRequest, tools: Sequence[Tool]) -> Toolbox:
    at = "tool_choice.allowed_tools"
    allowed = read(_Allowed, raw, at=at)
    if not allowed.tools:
        raise InvalidRequest(f"{at}.tools is empty", param=f"{at}.tools")
    found: dict[str, Tool] = {}
    for i, each in enumerate(allowed.tools):
        place = f"{at}.tools[{i}]"
        outer = read(_Tool, each, at=place)
        name = read(_Named, outer.function, at=f"{place}.function").name
        found[name] = _named(name, tools, f"{place}.function.name")
    return Toolbox(
        shown=tuple(given.tools),
        tools=tuple(found.values()),
        mode=allowed.mode,
        many=given.parallel_tool_calls,
    )


def _named(name: str, tools: Sequence[Tool], param: str) -> Tool:
    found = next((tool for tool in tools if tool.name == name), None)
    if found is None:
        raise InvalidRequest(f"there is no tool called {name!a:.80}", param=param)
    return found


def _need_tools(is_needed: bool) -> None:
    if is_needed:
        raise InvalidRequest(
            "tool_choice asks for a call, and there are no tools", param="tool_choice"
        )
