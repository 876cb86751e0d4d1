"""Anthropic's messages over a scripted model: replies, streams, what reaches the gateway."""

from __future__ import annotations

import json

import pytest
from anthropic.types import Message, MessageStreamEvent
from pydantic import TypeAdapter

from tests.api.anthropic_talk import (
    COUNT,
    HELLO,
    MESSAGES,
    TOOL,
    TOOLS,
    answered,
    body,
    counted,
    message_of,
    pings,
    streamed,
    timeless,
)
from tests.api.scripted import MODEL, ScriptedGateway
from tests.api.talk import ask
from tests.api.tool_talk import CALL, NOW_CALL, format_of, gateway_of

ANY_EVENT = TypeAdapter(MessageStreamEvent)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer)


def said(message):
    """Its blocks in short."""
    return [
        (block["name"], block["input"]) if block["type"] == "tool_use" else block["text"]
        for block in message["content"]
    ]


def both(gateway, **fields):
    """The reply, whole; the streamed one is the same."""
    whole = answered(gateway, **fields)
    Message.model_validate(whole, strict=True)
    events = streamed(gateway, **fields)
    for event in events:
        if event["type"] != "ping":
            ANY_EVENT.validate_python(event)
    assert timeless(message_of(events)) == timeless(whole)
    starts = [i for i, event in enumerate(events) if event["type"] == "content_block_start"]
    assert pings(events) == ([starts[0] + 1] if starts else [])
    return whole


# ---- replies ----


def test_a_reply(gateway):
    message = answered(gateway, rid="one")
    [request] = gateway.requests
    assert message == {
        "id": "msg_one",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "the quick brown fox"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(request.prompt) // 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 6,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


@pytest.mark.parametrize(
    ("outputs", "fields", "blocks", "stop_reason", "stop_sequence"),
    [
        ("the fox", {}, ["the fox"], "end_turn", None),
        ("", {}, [], "end_turn", None),
        ("the red fox", {"stop_sequences": ["z", " fox"]}, ["the red"], "stop_sequence", " fox"),
        ("the quick fox", {"stop_sequences": ["the"]}, [], "stop_sequence", "the"),
        ("the quick brown fox", {"max_tokens": 2}, ["the quick"], "max_tokens", None),
        (
            f"Sure.{CALL}",
            {"tools": TOOLS},
            ["Sure.", ("get_weather", {"city": "Paris"})],
            "tool_use",
            None,
        ),
        (
            f"{CALL}{NOW_CALL}",
            {"tools": TOOLS},
            [("get_weather", {"city": "Paris"}), ("now", {})],
            "tool_use",
            None,
        ),
        (f"{NOW_CALL} and more", {"tools": TOOLS}, [("now", {}), " and more"], "tool_use", None),
        ("no call", {"tools": TOOLS}, ["no call"], "end_turn", None),
        ("", {"tools": TOOLS}, [], "end_turn", None),
        ("<tool_call> no", {"tools": TOOLS}, ["<tool_call> no"], "end_turn", None),
        (
            f"{NOW_CALL}",
            {"tools": TOOLS, "tool_choice": {"type": "none"}},
            [NOW_CALL],
            "end_turn",
            None,
        ),
        (
            f"{NOW_CALL} STOP",
            {"tools": TOOLS, "stop_sequences": ["STOP"]},
            [("now", {})],
            "stop_sequence",
            "STOP",
        ),
    ],
)  # fmt: skip
def test_replies_whole_and_streamed(renderer, outputs, fields, blocks, stop_reason, stop_sequence):
    message = both(gateway_of(renderer, outputs), **fields)
    assert said(message) == blocks
    assert (message["stop_reason"], message["stop_sequence"]) == (stop_reason, stop_sequence)
    ids = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    assert len(set(ids)) == len(ids)
    assert all(id.startswith("toolu_") for id in ids)


@pytest.mark.parametrize("stop", ["Par", '"city"'])
def test_a_call_that_a_stop_sequence_cuts_has_no_arguments(renderer, stop):
    gateway = gateway_of(renderer, CALL)
    message = answered(gateway, tools=TOOLS, stop_sequences=[stop])
    assert said(message) == [("get_weather", {})]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)
    events = streamed(gateway, tools=TOOLS, stop_sequences=[stop])
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    told = [delta["partial_json"] for delta in deltas]
    assert "".join(told) == '{"city": "Paris"}'.partition(stop)[0]


def test_what_the_context_has_no_room_for(renderer):
    gateway = ScriptedGateway(renderer, ("the quick brown fox " * 9,), context_len=24)
    message = both(gateway, max_tokens=400)
    assert message["stop_reason"] == "model_context_window_exceeded"
    assert message["usage"]["output_tokens"] + message["usage"]["input_tokens"] <= 24
    assert both(gateway, max_tokens=3)["stop_reason"] == "max_tokens"


def test_what_was_cached_is_no_input(gateway):
    first, second = (answered(gateway)["usage"] for _ in range(2))
    total = first["input_tokens"]
    assert first["cache_read_input_tokens"] == 0
    assert second["cache_read_input_tokens"] == total - 1
    assert second["input_tokens"] == 1
    start, *_, delta, _ = streamed(gateway)
    assert start["message"]["usage"] == second | {"output_tokens": 0}
    assert delta["usage"] == second


def test_what_is_ours_comes_along(gateway):
    gateway.truncated = True
    whole = answered(gateway, explain_cache=True)
    for message in (whole, message_of(streamed(gateway, explain_cache=True))):
        assert message["truncated"] is True
        assert message["cache"]["reason"] == "evicted"
    program = {"id": "p", "call": "c"}
    answered(gateway, cache_salt="s", priority=3, timeout_s=9, program=program, rid="r")
    request = gateway.requests[-1]
    assert "s" in request.namespace
    assert (request.priority, request.timeout_s) == (3, 9)
    assert (request.rid, request.program.id) == ("r", "p")


# ---- what reaches the gateway ----


def test_sampling_reaches_the_gateway(gateway):
    answered(gateway)
    answered(gateway, temperature=0.5, top_p=0.25, top_k=7, stop_sequences=["a", "b"], max_tokens=9)
    first, second = (request.params for request in gateway.requests)
    assert (first.temperature, first.top_p, first.top_k, first.stop) == (1.0, 1.0, 0, ())
    assert first.max_new_tokens == 400
    assert (second.temperature, second.top_p, second.top_k) == (0.5, 0.25, 7)
    assert (second.stop, second.max_new_tokens) == (("a", "b"), 9)


@pytest.mark.parametrize(
    ("choice", "kind", "many"),
    [
        (None, "triggered_tags", True),
        ({"type": "auto"}, "triggered_tags", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "triggered_tags", False),
        ({"type": "any"}, "tag", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "tag", False),
        ({"type": "tool", "name": "now"}, "tag", False),
        ({"type": "none"}, "any_text", None),
    ],
)
def test_calls_are_bound_as_tool_choice_says(renderer, choice, kind, many):
    gateway = gateway_of(renderer, "x")
    answered(gateway, tools=TOOLS, tool_choice=choice)
    found = format_of(gateway)
    assert found["type"] == kind
    if many is None:
        return
    calls = found["tags"][0] if kind == "triggered_tags" else found
    assert calls["content"]["stop_after_first"] is not many
    begins = [tag["begin"] for tag in calls["content"]["tags"]]
    names = ["now"] if choice and choice["type"] == "tool" else ["get_weather", "now"]
    assert [name in begin for name, begin in zip(names, begins, strict=True)] == [True] * len(names)


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    ],
)
def test_an_answer_is_bound_to_its_schema(renderer, fields):
    gateway = gateway_of(renderer, '{"a": 1}')
    assert said(both(gateway, **fields)) == ['{"a": 1}']
    constraint = gateway.requests[-1].constraint
    assert constraint.kind == "json_schema"
    assert json.loads(constraint.value)["required"] == ["a"]
    answered(gateway, tools=TOOLS, **fields)
    assert format_of(gateway)["type"] == "or"


def test_labels_hints_and_headers_change_nothing(gateway):
    cache = {"type": "ephemeral", "ttl": "1h"}
    plain = answered(gateway)
    assert answered(
        gateway,
        metadata={"user_id": "me"},
        service_tier="auto",
        cache_control=cache,
        system="",
        messages=[
            {
                "role": "user",
                "content": [{"type": "text", "text": "hello", "cache_control": cache}],
            }
        ],
    )["content"] == plain["content"]  # fmt: skip
    first, second = gateway.requests
    assert first.prompt == second.prompt
    assert first.params == second.params


# ---- counting ----


def test_a_count_is_the_input_of_the_message(renderer):
    gateway = gateway_of(renderer, "x")
    given = {"system": "be brief", "tools": [TOOL], "tool_choice": {"type": "any"}}
    usage = answered(gateway, **given)["usage"]
    assert counted(gateway, **given) == usage["input_tokens"]
    assert counted(gateway) < usage["input_tokens"]
    assert len(gateway.requests) == 1


def test_a_count_knows_no_context(gateway):
    messages = [{"role": "user", "content": "hello " * 1000}]
    assert counted(gateway, messages=messages) > 1000
    response = ask(gateway, MESSAGES, body(messages=messages))
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("prompt is too long: ")


def test_no_count_generates(gateway):
    response = ask(gateway, COUNT, body())
    assert response.status_code == 400
    assert "max_tokens" in response.json()["error"]["message"]
    assert ask(gateway, COUNT, {"messages": HELLO, "model": MODEL}).status_code == 200
    assert gateway.requests == []
