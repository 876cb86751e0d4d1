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
Part = dict[str, Any]

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


class ToldParts:
    """Parts of a program's prompt as plain ones: the same that told() makes of messages."""

    def __init__(self, syntax: Syntax) -> None:
        self._syntax = syntax
        self._untold: Tools = ()  # until the first block is there to tell them
        self._open: str | None = None
        self._has_content = False
        self._is_unclosed = False  # a block of results, and more may follow

    @property
    def is_told(self) -> bool:
        """The tools stand in the prompt."""
        return not self._untold

    def plain(self, kind: str, part: Mapping[str, Any]) -> list[Part]:
        """What stands for `part`, of that kind."""
        match kind:
            case "tools":
                self._untold = part["tools"]
                return []
            case "role_open":
                return self._opened(part["role_open"])
            case "role_close":
                return self._closed(part["role_close"])
            case "ids":
                return [*self.rest(), self._known(part)]
            case "border":
                return [dict(part)]
        self._has_content = self._has_content or bool(part.get("text"))
        return [*self.rest(), dict(part)]

    def rest(self) -> list[Part]:
        """What was held back, where no result follows."""
        is_unclosed, self._is_unclosed = self._is_unclosed, False
        return [{"role_close": "user"}] if is_unclosed else []

    def _known(self, part: Mapping[str, Any]) -> Part:
        """Ids of a prompt that this made before: its tools stand in them."""
        self._has_content = True
        if part.get("roles") or part.get("open") is not None:
            self._untold, self._open = (), part.get("open")
        return {name: value for name, value in part.items() if name != "called"}

    def _opened(self, role: object) -> list[Part]:
        if role == "tool" and self._is_unclosed:
            self._is_unclosed, self._open = False, "tool"
            return [{"text": f"\n{RESULT}\n"}]
        parts = self.rest()
        if self._untold and role not in ("system", "developer"):
            parts += [{"role_open": "system"}, *self._told(), {"role_close": "system"}]
        self._open, self._has_content = str(role), False
        if role == "tool":
            return [*parts, {"role_open": "user"}, {"text": f"{RESULT}\n"}]
        return [*parts, {"role_open": role}]

    def _closed(self, role: object) -> list[Part]:
        is_open = role == self._open
        self._open = None
        if role == "tool" and is_open:
            self._is_unclosed = True
            return [{"text": f"\n{RESULT_END}"}]
        gap = [{"text": "\n\n"}] if self._has_content else []
        words = [*gap, *self._told()] if self._untold and role in ("system", "developer") else []
        return [*words, {"role_close": role}]

    def _told(self) -> list[Part]:
        tools, self._untold = self._untold, ()
        return [{"text": description(tools, self._syntax)}]
