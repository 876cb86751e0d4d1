"""What of tools is a 400, and which field it names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.talk import CHAT, ask, error_of, hello
from tests.api.tool_talk import (
    HISTORY,
    NAMED,
    NOW,
    TOOLS,
    WEATHER,
    body,
    changed,
    gateway_of,
)

# ---- refusals ----


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [WEATHER, {"type": "function", "function": {"name": "f", **fields}}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [3]}, "tools[0]"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{**NOW, "colour": 1}]}, "tools[0].colour"),
        (function(name=""), "tools[1].function.name"),
        (function(name="a b"), "tools[1].function.name"),
        (function(name='"'), "tools[1].function.name"),
        (function(name="x" * 65), "tools[1].function.name"),
        (function(name="get_weather"), "tools[1].function.name"),
        (function(description=3), "tools[1].function.description"),
        (function(parameters=[]), "tools[1].function.parameters"),
        (function(parameters={"type": "string"}), "tools[1].function.parameters.type"),
        (function(strict="yes"), "tools[1].function.strict"),
        ({"tools": [NOW] * 129}, "tools"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": 3}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
         "tool_choice.function.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {}}},
         "tool_choice.function.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools":
          {"mode": "auto", "tools": []}}}, "tool_choice.allowed_tools.tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools":
          {"mode": "auto", "tools": [{"type": "function", "function": {"name": "x"}}]}}},
         "tool_choice.allowed_tools.tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tools": TOOLS, "parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"tools": TOOLS, "regex": "a+"}, "regex"),
        ({"tools": TOOLS, "guided_choice": ["a"]}, "guided_choice"),
        ({"tools": TOOLS, "guided_json": {"type": "object"}, "constraint_mode": "validate"},
         "constraint_mode"),
        ({"functions": [NOW["function"]]}, "functions"),
        ({"function_call": {"name": "now"}}, "function_call"),
        ({"messages": [*HISTORY[:1], {"role": "assistant", "tool_calls": [{}]}]},
         "messages[1].tool_calls[0].function"),
        ({"messages": changed(name=3)}, "messages[1].tool_calls[0].function.name"),
        ({"messages": changed(arguments=[1])}, "messages[1].tool_calls[0].function.arguments"),
    ],
)  # fmt: skip
def test_wrong_tools_are_named(renderer, fields, param):
    gateway = gateway_of(renderer, "x")
    for stream in (False, True):
        error = error_of(ask(gateway, CHAT, hello(stream=stream, **{**hello(), **fields})), 400)
        assert error["param"] == param
    assert gateway.requests == []


def test_lone_surrogates_in_tools(renderer):
    gateway = gateway_of(renderer, "x")
    raw = json.dumps(hello(**function(description="\ud83d"))).encode()
    assert error_of(ask(gateway, CHAT, raw), 400)["param"]
    raw = json.dumps(hello(**function(description="\ud83d\ude00"))).encode()
    assert ask(gateway, CHAT, raw).status_code == 200


@pytest.mark.parametrize("choice", ["auto", "required", {**NAMED, "function": {"name": "f"}}])
def test_a_schema_that_cannot_be_enforced_is_named(renderer, choice):
    gateway = gateway_of(renderer, "x")
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=a)b"}}}
    for more in ({}, {"response_format": {"type": "json_object"}}):
        given = hello(**function(parameters=bad), tool_choice=choice, **more)
        error = error_of(ask(gateway, CHAT, given), 400)
        assert error["param"] == "tools[1].function.parameters"
        assert error["code"] == "unsupported_schema"
        assert "#/properties/a/pattern" in error["message"]
    answer = {"type": "json_schema", "json_schema": {"name": "x", "schema": bad}}
    error = error_of(ask(gateway, CHAT, body(response_format=answer)), 400)
    assert error["param"] == "response_format"
