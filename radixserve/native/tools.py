"""The tools of a body, as OpenAI's chat and the native dialect write them.

Owns: what tools, tool_choice and parallel_tool_calls may say. Must not know: how calls are written,
messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from radixserve.errors import InvalidRequest
from radixserve.native.fields import read
from radixserve.native.toolbox import (
    Tool,
    Toolbox,
    arguments_schema,
    check_count,
    check_name,
    check_unique,
    mode_of,
    named_tool,
    need_tools,
)
from radixserve.text.conversation import strings_in
from radixserve.text.tokenizer import check_text


class ToolFields(Protocol):
    """The fields of a body that say what an output may call."""

    tools: list[Any]
    tool_choice: str | dict[str, Any] | None
    parallel_tool_calls: bool


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


def check_shown(tools: object, at: str) -> None:
    """Raise InvalidRequest unless these are tools of which a prompt may tell. at: where they
    stand."""
    if not isinstance(tools, list):
        raise InvalidRequest(f"{at} must be a list", param=at)
    check_count(len(tools))
    read_tools = [_tool(raw, f"{at}[{i}]") for i, raw in enumerate(tools)]
    check_unique(read_tools, [f"{at}[{i}].function.name" for i in range(len(tools))])


def toolbox_of(given: ToolFields) -> Toolbox:
    """Raises InvalidRequest naming the field. Whether the schemas can be enforced is not looked
    at."""
    check_count(len(given.tools))
    tools = [_tool(raw, f"tools[{i}]") for i, raw in enumerate(given.tools)]
    check_unique(tools, [f"tools[{i}].function.name" for i in range(len(tools))])
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
    check_name(function.name, f"{place}.name")
    place += ".parameters"
    return Tool(function.name, arguments_schema(function.parameters, place), place)


def _chosen(given: ToolFields, tools: Sequence[Tool]) -> Toolbox:
    choice, many = given.tool_choice, given.parallel_tool_calls
    if isinstance(choice, dict):
        return _chosen_by_object(choice, given, tools)
    mode = mode_of(choice)
    if not tools:
        need_tools(mode == "required")
        return Toolbox()
    return Toolbox(shown=tuple(given.tools), tools=tuple(tools), mode=mode, many=many)


def _chosen_by_object(raw: dict[str, Any], given: ToolFields, tools: Sequence[Tool]) -> Toolbox:
    choice = read(_Choice, raw, at="tool_choice")
    need_tools(not tools)
    shown = tuple(given.tools)
    match choice:
        case _Choice(type="function", function=dict(function), allowed_tools=None):
            at = "tool_choice.function"
            name = read(_Named, function, at=at).name
            named = named_tool(name, tools, f"{at}.name")
            return Toolbox(shown=shown, tools=(named,), mode="required", many=False)
        case _Choice(type="allowed_tools", function=None, allowed_tools=dict(allowed)):
            return _allowed(allowed, given, tools)
    raise InvalidRequest(
        "tool_choice is {type: function, function: {name}} or {type: allowed_tools, "
        "allowed_tools: {mode, tools}}",
        param="tool_choice",
    )


def _allowed(raw: dict[str, Any], given: ToolFields, tools: Sequence[Tool]) -> Toolbox:
    at = "tool_choice.allowed_tools"
    allowed = read(_Allowed, raw, at=at)
    if not allowed.tools:
        raise InvalidRequest(f"{at}.tools is empty", param=f"{at}.tools")
    found: dict[str, Tool] = {}
    for i, each in enumerate(allowed.tools):
        place = f"{at}.tools[{i}]"
        outer = read(_Tool, each, at=place)
        name = read(_Named, outer.function, at=f"{place}.function").name
        found[name] = named_tool(name, tools, f"{place}.function.name")
    return Toolbox(
        shown=tuple(given.tools),
        tools=tuple(found.values()),
        mode=allowed.mode,
        many=given.parallel_tool_calls,
    )
