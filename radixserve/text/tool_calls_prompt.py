"""Tools and calls as messages, for models whose chat template shows neither.

Owns: the words of the block that describes tools, calls and results as text of messages. Must not
know: requests, how calls are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from radixserve.errors import InvalidRequest
from radixserve.text.tool_calls import Syntax

Message = dict[str, Any]
Tools = Sequence[Mapping[str, Any]]

RESULT, RESULT_END = "<result>", "</result>"


def told(messages: Sequence[Message], tools: Tools, syntax: Syntax) -> list[Message]:
    """`messages` with the tools in the system block, calls as text of the assistant, and results
    as text of the user. messages: normalised, see conversation.py. Raises InvalidRequest for calls
    of no function."""
    plain = _plain(messages, syntax)
    if not tools:
        return plain
    return described(plain, description(tools, syntax))


def described(plain: list[Message], words: str) -> list[Message]:
    """`plain`, normalised, with `words` in the system block."""
    if plain and plain[0]["role"] == "system":
        first = plain[0]
        joined = f"{first['content']}\n\n{words}" if first["content"] else words
        return [{**first, "content": joined}, *plain[1:]]
    return [{"role": "system", "content": words}, *plain]


def description(tools: Tools, syntax: Syntax) -> str:
    """What the model reads of its tools."""
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    example = syntax.example("function-name", '{"argument-name": "value"}')
    return "\n".join(
        (
            "You can call functions. Each is described here by a JSON object:",
            "<tools>",
            *lines,
            "</tools>",
            "To call one, write its name and its arguments in this form:",
            example,
        )
    )


def _plain(messages: Sequence[Message], syntax: Syntax) -> list[Message]:
    found: list[Message] = []
    is_open = False  # the last message holds results, and more may follow
    for message in messages:
        if message["role"] == "tool":
            result = f"{RESULT}\n{message['content']}\n{RESULT_END}"
            if is_open:
                found[-1]["content"] += f"\n{result}"
            else:
                found.append({"role": "user", "content": result})
            is_open = True
            continue
        is_open = False
        found.append(_with_calls(message, syntax))
    return found


def _with_calls(message: Message, syntax: Syntax) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [_call(call, syntax) for call in calls]
    if message["content"]:
        texts.insert(0, message["content"])
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": "\n".join(texts)}


def _call(call: Any, syntax: Syntax) -> str:
    match call:
        case {"function": {"name": str(name), **rest}}:
            arguments = json.dumps(rest.get("arguments", {}), ensure_ascii=False)
            return syntax.example(name, arguments)
    raise InvalidRequest("a tool call is an object with a function and its name", param="messages")
