"""The shapes of a prompt's parts.

Owns: which kinds there are, what may stand beside each. parts.py says what they mean. Must not
know: tokens, templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radixserve.errors import InvalidRequest
from radixserve.text.blocks import TOOL, read_called, result_block
from radixserve.text.conversation import strings_in
from radixserve.text.tokenizer import check_text

_KINDS = ("ids", "text", "border", "role_open", "role_close", "choices", "tools")
_BESIDE = {"ids": {"roles", "open", "called"}, "role_open": {"tool_call_id", "name"}}


def kind_of(part: object, param: str) -> str:
    """Which kind of part it is. Raises InvalidRequest, naming `param`."""
    if not isinstance(part, Mapping):
        raise InvalidRequest("a part is an object", param=param)
    kinds = [kind for kind in _KINDS if kind in part]
    beside = _BESIDE.get(kinds[0], set()) if len(kinds) == 1 else set()
    if part.get("role_open") not in (None, TOOL):
        beside = set()
    if len(kinds) != 1 or part.keys() - {kinds[0], *beside}:
        raise InvalidRequest(
            f"a part has one of {', '.join(_KINDS)} (roles, open and called may stand beside ids, "
            f"tool_call_id and name beside a role_open of tool), "
            f"not {', '.join(sorted(map(str, part))) or 'nothing'}",
            param=param,
        )
    return kinds[0]


def check_part(kind: str, part: Mapping[str, Any]) -> None:
    """What is read the same however the model is told of tools. Raises InvalidRequest."""
    if kind == "tools":
        _check_tools(part["tools"])
    elif kind == "role_open" and part["role_open"] == TOOL:
        result_block(part)
    elif "called" in part:
        read_called(part["called"])


def _check_tools(tools: object) -> None:
    if not isinstance(tools, list) or not tools:
        raise InvalidRequest("tools must be a list of at least one")
    for tool in tools:
        match tool:
            case {"type": "function", "function": {"name": str()}}:
                pass
            case _:
                raise InvalidRequest("a tool is {type: function, function: {name, ..}}")
    try:
        for text in strings_in(tools):
            check_text(text)
    except RecursionError:
        raise InvalidRequest("the tools are nested too deeply") from None


def checked_choices(choices: object) -> list[str]:
    """Answers to choose from. Raises InvalidRequest."""
    if not isinstance(choices, list | tuple) or not choices:
        raise InvalidRequest("choices must be a list of at least one string")
    for text in choices:
        if not isinstance(text, str):
            raise InvalidRequest("choices must be strings")
        check_text(text)
    return list(choices)
