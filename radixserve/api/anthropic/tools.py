"""The tools of a Messages body.

Owns: what tools and tool_choice may say. Must not know: how calls are written, messages.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from radixserve.api.anthropic.schema import CacheControl, Told
from radixserve.errors import InvalidRequest
from radixserve.native.fields import read
from radixserve.native.toolbox import (
    Mode,
    Tool,
    Toolbox,
    arguments_schema,
    check_count,
    check_name,
    check_unique,
    named_tool,
    need_tools,
)
from radixserve.text.conversation import strings_in
from radixserve.text.tokenizer import check_text

MAX_NAME = 128
# Of tools that a program calls, that are told of late, that are sent whole: here the client calls
# all, all are told of at once, and arguments always come as they are written.
REFUSED_TOOL: dict[str, tuple[Any, ...]] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "input_examples": ([],),
}


class CustomTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """strict, eager_input_streaming: taken; arguments satisfy the schema and are streamed as they
    come whatever these say."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    type: Literal["custom"] = "custom"
    cache_control: CacheControl | None = None


class ToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


_MODES: dict[str, Mode] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


def toolbox_of(given: Told) -> Toolbox:
    """Raises InvalidRequest naming the field. Whether the schemas can be enforced is not looked
    at."""
    check_count(len(given.tools))
    read_tools = [_tool(raw, f"tools[{i}]") for i, raw in enumerate(given.tools)]
    shown, tools = tuple(each for each, _ in read_tools), tuple(tool for _, tool in read_tools)
    check_unique(tools, [f"tools[{i}].name" for i in range(len(tools))])
    choice = _choice(given.tool_choice)
    if not tools:
        need_tools(_MODES[choice.type] == "required")
        return Toolbox()
    if choice.name is not None:
        tools = (named_tool(choice.name, tools, "tool_choice.name"),)
    many = choice.type != "tool" and not choice.disable_parallel_tool_use
    return Toolbox(shown=shown, tools=tools, mode=_MODES[choice.type], many=many)


def _choice(raw: dict[str, Any] | None) -> ToolChoice:
    if raw is None:
        return ToolChoice(type="auto")
    choice = read(ToolChoice, raw, at="tool_choice")
    if (choice.name is None) == (choice.type == "tool"):
        has = "needs" if choice.name is None else "has no use for"
        raise InvalidRequest(
            f"tool_choice of type {choice.type} {has} a name", param="tool_choice.name"
        )
    if choice.type == "none" and choice.disable_parallel_tool_use:
        name = "tool_choice.disable_parallel_tool_use"
        raise InvalidRequest(f"{name} has no effect where no tool is called", param=name)
    return choice


def _tool(raw: object, at: str) -> tuple[dict[str, Any], Tool]:
    """(as the chat template is to have it, as it is enforced)."""
    kind = raw.get("type") if isinstance(raw, dict) else None
    if kind not in (None, "custom"):
        raise InvalidRequest(
            f"{at}.type: tools of type {kind!a:.60} are not supported; only custom ones, which the "
            "client calls itself",
            param=f"{at}.type",
            code="unsupported_parameter",
        )
    tool = read(CustomTool, raw, at=at, refused=REFUSED_TOOL)
    for text in strings_in(raw):
        check_text(text, at)
    check_name(tool.name, f"{at}.name", MAX_NAME)
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    place = f"{at}.input_schema"
    enforced = Tool(tool.name, arguments_schema(tool.input_schema, place), place)
    return {"type": "function", "function": function}, enforced
