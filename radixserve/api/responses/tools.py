"""The tools of a response's body.

Owns: what tools and tool_choice may say there. Must not know: how calls are written, items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from radixserve.api.responses.schema import Told
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

# Callers other than the model, tools that are found by search, schemas of results.
REFUSED_TOOL: dict[str, tuple[Any, ...]] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "output_schema": (),
}


class FunctionTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """strict: taken; arguments satisfy the schema whatever it says."""

    name: str
    type: Literal["function"] = "function"
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Choice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[dict[str, Any]] | None = None


class _Named(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    type: Literal["function"]


def toolbox_of(given: Told) -> Toolbox:
    """Raises InvalidRequest naming the field. Whether the schemas can be enforced is not looked
    at."""
    check_count(len(given.tools))
    read_tools = [_read(raw, f"tools[{i}]") for i, raw in enumerate(given.tools)]
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(read_tools)]
    check_unique(tools, [f"tools[{i}].name" for i in range(len(tools))])
    shown = tuple(map(_shown, read_tools))
    return _chosen(given, shown, tools)


def _read(raw: object, at: str) -> FunctionTool:
    kind = raw.get("type") if isinstance(raw, dict) else "function"
    if kind != "function":
        raise InvalidRequest(
            f"{at}.type is function; there are no tools of type {kind!a:.60} here",
            param=f"{at}.type",
            code="unsupported_parameter",
        )
    tool = read(FunctionTool, raw, refused=REFUSED_TOOL, at=at)
    for text in strings_in(raw):
        check_text(text, at)
    check_name(tool.name, f"{at}.name")
    return tool


def _tool(tool: FunctionTool, at: str) -> Tool:
    place = f"{at}.parameters"
    return Tool(tool.name, arguments_schema(tool.parameters, place), place)


def _shown(tool: FunctionTool) -> dict[str, Any]:
    """As chat clients write it, which is what templates know; no more than was given."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def _chosen(given: Told, shown: tuple[dict[str, Any], ...], tools: Sequence[Tool]) -> Toolbox:
    choice, many = given.tool_choice, given.parallel_tool_calls
    if isinstance(choice, dict):
        return _chosen_by_object(choice, Toolbox(shown=shown, tools=tuple(tools), many=many))
    mode = mode_of(choice)
    if not tools:
        need_tools(mode == "required")
        return Toolbox()
    return Toolbox(shown=shown, tools=tuple(tools), mode=mode, many=many)


def _chosen_by_object(raw: dict[str, Any], box: Toolbox) -> Toolbox:
    choice = read(_Choice, raw, at="tool_choice")
    need_tools(not box.tools)
    match choice:
        case _Choice(type="function", name=str(name), mode=None, tools=None):
            named = named_tool(name, box.tools, "tool_choice.name")
            return Toolbox(shown=box.shown, tools=(named,), mode="required", many=False)
        case _Choice(type="allowed_tools", name=None, tools=list(allowed)):
            return Toolbox(
                shown=box.shown,
                tools=_allowed(allowed, box.tools),
                mode=choice.mode or "auto",
                many=box.many,
            )
    raise InvalidRequest(
        "tool_choice is {type: function, name} or {type: allowed_tools, mode, tools}",
        param="tool_choice",
    )


def _allowed(given: list[dict[str, Any]], tools: Sequence[Tool]) -> tuple[Tool, ...]:
    at = "tool_choice.tools"
    if not given:
        raise InvalidRequest(f"{at} is empty", param=at)
    found: dict[str, Tool] = {}
    for i, raw in enumerate(given):
        place = f"{at}[{i}]"
        name = read(_Named, raw, at=place).name
        found[name] = named_tool(name, tools, f"{place}.name")
    return tuple(found.values())
