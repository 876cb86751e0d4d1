"""The tools that an output may call.

Owns: what a tool is, which of them may be called, the schema that arguments satisfy. Must not know:
how any dialect writes tools, how calls are written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from radixserve.errors import InvalidRequest

MAX_TOOLS = 128
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

    shown: as the chat template is to have them, {"type": "function", "function": {name, ..}}.
    tools: those that may be called. mode: whether a call may or must come. many: several may.
    field: what names the mode.
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


def mode_of(choice: object) -> Mode:
    """tool_choice where it is no object; null is auto."""
    match choice:
        case None:
            return "auto"
        case "none" | "auto" | "required":
            return choice
    raise InvalidRequest(
        f"tool_choice is none, auto, required or an object, not {choice!a:.60}",
        param="tool_choice",
    )


def check_name(name: str, param: str, longest: int = 64) -> None:
    """Raise InvalidRequest unless a function may be called so."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or len(name) > longest:
        raise InvalidRequest(
            f"{param} is 1 to {longest} letters, digits, _ or -, not {name!a:.80}", param=param
        )


def check_count(count: int) -> None:
    if count > MAX_TOOLS:
        raise InvalidRequest(f"tools has {count} entries, {MAX_TOOLS} are possible", param="tools")


def check_unique(tools: Sequence[Tool], names: Sequence[str]) -> None:
    """names: what the client calls the name of each tool, for errors."""
    seen: set[str] = set()
    for tool, param in zip(tools, names, strict=True):
        if tool.name in seen:
            raise InvalidRequest(f"two tools are called {tool.name}", param=param)
        seen.add(tool.name)


def named_tool(name: str, tools: Sequence[Tool], param: str) -> Tool:
    """The tool of that name. Raises InvalidRequest where there is none."""
    found = next((tool for tool in tools if tool.name == name), None)
    if found is None:
        raise InvalidRequest(f"there is no tool called {name!a:.80}", param=param)
    return found


def need_tools(is_needed: bool) -> None:
    """Raise InvalidRequest where a call is asked for and there is nothing to call."""
    if is_needed:
        raise InvalidRequest(
            "tool_choice asks for a call, and there are no tools", param="tool_choice"
        )


def arguments_schema(given: dict[str, Any] | None, place: str) -> dict[str, Any]:
    """The schema that arguments satisfy: an object, and where only properties say which ones there
    are, no others. place: where the client gave it."""
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
