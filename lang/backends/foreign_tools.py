"""Tools on other people's endpoints.

Owns: the fields that say what may be called, calls and results as their messages have them, calls
as they come in a stream. Must not know: the rest of a request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from radixserve.lang.backends.base import Body
from radixserve.lang.errors import BackendError, Unsupported
from radixserve.lang.toolkit import named_in

JSON = dict[str, Any]


def told_tools(body: Body) -> list[JSON]:
    """The tools of the conversation."""
    first = body["input"][0] if body["input"] else {}
    return list(first.get("tools", ()))


def may_call(body: Body) -> bool:
    return bool(body.get("tools")) and body.get("tool_choice") != "none"


def refuse_tools(body: Body, backend: str) -> None:
    if told_tools(body) or body.get("tools"):
        raise Unsupported(f"{backend} takes plain text: it cannot do tools")


def openai_fields(body: Body) -> JSON:
    """Of a chat request: all tools of the conversation, so that all its prompts begin alike, and
    which of them may be called."""
    told = told_tools(body)
    if not told:
        return {}
    fields: JSON = {"tools": told, "tool_choice": _choice(body, told)}
    if may_call(body) and body.get("parallel_tool_calls") is False:
        fields["parallel_tool_calls"] = False
    return fields


def _choice(body: Body, told: list[JSON]) -> Any:
    if not may_call(body):
        return "none"
    choice = body.get("tool_choice") or "auto"
    if choice not in ("auto", "required") or len(body["tools"]) == len(told):
        return choice
    names = [{"type": "function", "function": {"name": _name(each)}} for each in body["tools"]]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice, "tools": names}}


def anthropic_fields(body: Body) -> JSON:
    """Of a messages request. That API has no choice among some of the tools, so then those alone
    are told."""
    told = told_tools(body)
    if not told:
        return {}
    choice, shown = body.get("tool_choice") or "auto", told
    if may_call(body):
        named = named_in(choice)
        shown = [each for each in body["tools"] if not named or _name(each) in named]
    match choice:
        case _ if not may_call(body):
            made: JSON = {"type": "none"}
        case "required" | {"allowed_tools": {"mode": "required"}}:
            made = {"type": "any"}
        case {"type": "function", "function": {"name": name}}:
            made, shown = {"type": "tool", "name": name}, list(body["tools"])
        case _:
            made = {"type": "auto"}
    if may_call(body) and body.get("parallel_tool_calls") is False:
        made["disable_parallel_tool_use"] = True
    return {"tools": [_anthropic_tool(each) for each in shown], "tool_choice": made}


def _anthropic_tool(spec: JSON) -> JSON:
    function = dict(spec["function"])
    schema = function.pop("parameters", None) or {"type": "object", "properties": {}}
    return {**function, "input_schema": {"type": "object", **schema}}


def anthropic_messages(messages: Sequence[JSON]) -> list[JSON]:
    """Messages of OpenAI's chat as that API has them: results stand in blocks of the user, those
    of one turn together."""
    found: list[JSON] = []
    is_open = False  # the last message holds results
    for message in messages:
        if message["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
            block["content"] = message["content"]
            if not is_open:
                found.append({"role": "user", "content": []})
            found[-1]["content"].append(block)
            is_open = True
            continue
        is_open = False
        found.append(_with_calls(message))
    return found


def _with_calls(message: JSON) -> JSON:
    calls = message.get("tool_calls")
    if not calls:
        return message
    text = message["content"]
    blocks: list[JSON] = [{"type": "text", "text": text}] if text else []
    for call in calls:
        function = call["function"]
        arguments = json.loads(function["arguments"] or "{}")
        used = {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}
        blocks.append(used)
    return {"role": message["role"], "content": blocks}


class Calling:
    """The calls of one output, as they come."""

    def __init__(self) -> None:
        self._calls: dict[int, JSON] = {}

    def add(self, index: int, call_id: str | None, name: str | None, arguments: str) -> None:
        """More of call `index`; its id and name come once."""
        function = {"name": "", "arguments": ""}
        call = self._calls.setdefault(index, {"id": "", "type": "function", "function": function})
        call["id"] += call_id or ""
        call["function"]["name"] += name or ""
        call["function"]["arguments"] += arguments

    def add_openai(self, calls: Sequence[JSON] | None) -> None:
        """What a message or a delta has of calls."""
        for i, call in enumerate(calls or ()):
            if call.get("type", "function") != "function":
                kind = call["type"]
                raise BackendError(502, "malformed_reply", f"a call of a tool of type {kind!r}")
            function = call.get("function") or {}
            at = call.get("index", i)
            self.add(at, call.get("id"), function.get("name"), function.get("arguments") or "")

    def beside(self, body: Body) -> dict[str, list[JSON]]:
        """The calls so far, as they stand in a reply to `body`; nothing where it allows none."""
        if not may_call(body):
            return {}
        calls = [self._calls[index] for index in sorted(self._calls)]
        return {"tool_calls": [{**each, "function": {**each["function"]}} for each in calls]}


def _name(spec: JSON) -> str:
    return str(spec["function"]["name"])
