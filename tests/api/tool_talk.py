"""Tools, calls and a history of them, for tests of chat."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

from tests.api.scripted import ScriptedGateway
from tests.api.talk import hello

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "the weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
NOW_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
PARIS = ("get_weather", '{"city": "Paris"}')
NAMED = {"type": "function", "function": {"name": "now"}}


class Turns(ScriptedGateway):
    """Says turns[i] to its request i, or the last."""

    turns: list[str] = []  # noqa: RUF012 (set by each test)

    async def submit(self, request):
        self.outputs = [self.turns[min(len(self.requests), len(self.turns) - 1)]]
        async with contextlib.aclosing(super().submit(request)) as chunks:
            async for chunk in chunks:
                yield chunk


def written(name: str, **arguments: Any) -> str:
    """A call as the scripted model writes it."""
    inner = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{inner}\n</tool_call>"


def gateway_of(renderer, *outputs):
    return ScriptedGateway(renderer, outputs, context_len=4096)


def body(**fields: Any) -> dict[str, Any]:
    return hello(tools=TOOLS, max_tokens=400, **fields)


def calls_of(message):
    calls = message.get("tool_calls", [])
    assert all(call["type"] == "function" for call in calls)
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def format_of(gateway):
    constraint = gateway.requests[-1].constraint
    assert constraint.kind == "structural_tag"
    return json.loads(constraint.value)["format"]


def prompt_of(gateway):
    ids = memoryview(gateway.requests[-1].prompt).cast("i").tolist()
    return gateway.renderer.tokenizer.decode(ids, skip_special=False)


HISTORY = [
    {"role": "user", "content": "weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city":"P"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
]


def changed(**call: Any) -> list[dict[str, Any]]:
    messages = copy.deepcopy(HISTORY)
    messages[1]["tool_calls"][0]["function"] |= call
    return messages
