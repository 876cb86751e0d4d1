"""Tools in chat completions over a scripted model: replies, and what is enforced."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.api.talk import CHAT, answered, hello, streamed
from tests.api.tool_talk import (
    CALL,
    NAMED,
    NOW_CALL,
    PARIS,
    body,
    calls_of,
    format_of,
    gateway_of,
    prompt_of,
)


def whole_of(events):
    """The choices of a stream in the shape of the whole reply; each index in its order, id and
    name in the first delta of a call alone, and one finish_reason, the last thing of a choice."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        ChatCompletionChunk.model_validate(event, strict=True)
        for choice in event["choices"]:
            delta = choice["delta"]
            if choice["index"] not in found:
                assert delta.pop("role") == "assistant"
                found[choice["index"]] = {"content": None, "tool_calls": [], "finish_reason": None}
            assert "role" not in delta
            mine = found[choice["index"]]
            assert mine["finish_reason"] is None
            mine["finish_reason"] = choice["finish_reason"]
            if delta.get("content") is not None:
                mine["content"] = (mine["content"] or "") + delta["content"]
            for call in delta.get("tool_calls", []):
                if call["index"] == len(mine["tool_calls"]):
                    assert call.keys() == {"index", "id", "type", "function"}
                    assert call["function"]["name"]
                    mine["tool_calls"].append(copy.deepcopy(call))
                else:
                    assert call["index"] == len(mine["tool_calls"]) - 1
                    assert call.keys() == {"index", "function"}
                    assert call["function"].keys() == {"arguments"}
                    arguments = call["function"]["arguments"]
                    mine["tool_calls"][-1]["function"]["arguments"] += arguments
    return found


# ---- replies ----


@pytest.mark.parametrize(
    ("said", "content", "calls", "reason"),
    [
        (CALL, None, [PARIS], "tool_calls"),
        (f"Sure. {CALL}", "Sure. ", [PARIS], "tool_calls"),
        (f"{CALL}\n{NOW_CALL}", None, [PARIS, ("now", "{}")], "tool_calls"),
        ("none of it", "none of it", [], "stop"),
        ("", "", [], "stop"),
        ("a <tool_ca", "a <tool_ca", [], "stop"),
    ],
)
def test_replies_and_streams_say_the_same(renderer, said, content, calls, reason):
    gateway = gateway_of(renderer, said)
    whole = answered(gateway, CHAT, body())
    ChatCompletion.model_validate(whole, strict=True)
    [choice] = whole["choices"]
    message = choice["message"]
    assert (message["content"], calls_of(message)) == (content, calls)
    assert ("tool_calls" in message) == bool(calls)
    assert choice["finish_reason"] == reason
    ids = [call["id"] for call in message.get("tool_calls", [])]
    assert len(set(ids)) == len(calls)
    events = streamed(gateway, CHAT, body())
    [streamed_choice] = whole_of(events).values()
    assert (streamed_choice["content"], calls_of(streamed_choice)) == (content, calls)
    assert streamed_choice["finish_reason"] == reason


def test_several_choices_each_have_their_calls(renderer):
    gateway = gateway_of(renderer, CALL, "no", f"well {NOW_CALL}")
    found = whole_of(streamed(gateway, CHAT, body(n=3)))
    assert [calls_of(found[i]) for i in range(3)] == [[PARIS], [], [("now", "{}")]]
    assert [found[i]["finish_reason"] for i in range(3)] == ["tool_calls", "stop", "tool_calls"]
    assert [found[i]["content"] for i in range(3)] == [None, "no", "well "]
    whole = answered(gateway, CHAT, body(n=3))
    assert [calls_of(c["message"]) for c in whole["choices"]] == [[PARIS], [], [("now", "{}")]]


def test_what_is_cut_says_length_and_truncated(renderer):
    gateway = gateway_of(renderer, CALL)
    gateway.truncated = True
    tokens = renderer.tokenizer.encode(CALL, opens=False, special=False)
    given = {**body(), "max_tokens": len(tokens) - 2}
    [choice] = answered(gateway, CHAT, given)["choices"]
    assert (choice["finish_reason"], choice["truncated"]) == ("length", True)
    assert calls_of(choice["message"])[0][0] == "get_weather"


def test_logprobs_are_those_of_every_token(renderer):
    gateway = gateway_of(renderer, f"ok {CALL}")
    [choice] = answered(gateway, CHAT, body(logprobs=True))["choices"]
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries).startswith(f"ok {CALL}")
    events = streamed(gateway, CHAT, body(logprobs=True))
    told = [e for event in events for c in event["choices"] for e in (c["logprobs"] or {}).get("content", [])]  # fmt: skip # noqa: E501
    assert told == entries


# ---- what is enforced ----


def test_auto_is_text_that_may_end_with_calls(renderer):
    gateway = gateway_of(renderer, "x")
    answered(gateway, CHAT, body())
    made = format_of(gateway)
    assert (made["type"], made["triggers"]) == ("triggered_tags", ["<tool_call>"])
    [calls] = made["tags"]
    assert not calls["content"]["stop_after_first"]
    assert [tag["begin"] for tag in calls["content"]["tags"]] == [
        '\n{"name": "get_weather", "arguments": ',
        '\n{"name": "now", "arguments": ',
    ]


@pytest.mark.parametrize(
    ("choice", "names", "many"),
    [
        ("required", ["get_weather", "now"], True),
        (NAMED, ["now"], False),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
         ["now"], True),
    ],
)  # fmt: skip
def test_calls_that_must_come(renderer, choice, names, many):
    gateway = gateway_of(renderer, CALL)
    for parallel in (True, False):
        answered(gateway, CHAT, body(tool_choice=choice, parallel_tool_calls=parallel))
        made = format_of(gateway)
        assert (made["type"], made["begin"]) == ("tag", "<tool_call>")
        assert [tag["begin"].split('"')[3] for tag in made["content"]["tags"]] == names
        assert made["content"]["stop_after_first"] is not (many and parallel)


def test_none_is_text_without_calls(renderer):
    gateway = gateway_of(renderer, "x")
    answered(gateway, CHAT, body(tool_choice="none"))
    assert format_of(gateway) == {"type": "any_text", "excludes": ["<tool_call>", "</tool_call>"]}
    assert "get_weather" in prompt_of(gateway), "the prompt is that of the other turns"


def test_a_call_or_an_answer(renderer):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    answer = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    gateway = gateway_of(renderer, '{"a": 1}')
    [choice] = answered(gateway, CHAT, body(response_format=answer))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ('{"a": 1}', "stop")
    made = format_of(gateway)
    assert [part["type"] for part in made["elements"]] == ["tag", "json_schema"]
    assert made["elements"][1]["json_schema"]["required"] == ["a"]
    answered(gateway, CHAT, body(response_format=answer, tool_choice="none"))
    assert gateway.requests[-1].constraint.kind == "json_schema"
    answered(gateway, CHAT, body(response_format=answer, tool_choice="required"))
    assert format_of(gateway)["type"] == "tag"


@pytest.mark.parametrize(
    ("parameters", "closed"),
    [
        (None, True),
        ({}, False),
        ({"type": "object"}, False),
        ({"properties": {"a": {}}}, True),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, True),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, False),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": True}, False),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, False),
    ],
)
def test_arguments_are_objects_and_no_others_are_made_up(renderer, parameters, closed):
    gateway = gateway_of(renderer, "x")
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    answered(gateway, CHAT, hello(tools=tools, tool_choice="required"))
    [tag] = format_of(gateway)["content"]["tags"]
    schema = tag["content"]["json_schema"]
    assert schema["type"] == ["object"]
    assert (schema.get("additionalProperties") is False) == closed


def test_no_tools_no_constraint(renderer):
    gateway = gateway_of(renderer, CALL)
    for given in ({}, {"tools": []}, {"tools": None, "tool_choice": "auto"},
                  {"tool_choice": "none", "parallel_tool_calls": False}):  # fmt: skip
        [choice] = answered(gateway, CHAT, hello(max_tokens=400, **given))["choices"]
        assert choice["message"]["content"] == CALL
        assert gateway.requests[-1].constraint is None
