"""Responses over a scripted model: replies and their streams, what is enforced."""

from __future__ import annotations

import pytest

from radixserve.api.responses.output import Output
from radixserve.text.reasoning import Thought
from radixserve.text.tool_calls_stream import Argued, Begun, Said
from tests.api.response_talk import (
    RESPONSES,
    TOOLS,
    answered,
    body,
    many,
    prompt_of,
    rebuilt,
    saying,
    shapes_of,
    streamed,
    with_tools,
)
from tests.api.scripted import MODEL, ScriptedGateway
from tests.api.talk import ask, error_of
from tests.api.tool_talk import CALL, NOW_CALL, format_of

LOGPROBS = {"include": ["message.output_text.logprobs"]}


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, context_len=4096)


# ---- replies and streams ----


@pytest.mark.parametrize(
    ("said", "shapes"),
    [
        ("the quick fox", [("message", "the quick fox")]),
        ("", [("message", "")]),
        (CALL, [("call", "get_weather", '{"city": "Paris"}')]),
        (f"Sure. {CALL}", [("message", "Sure. "), ("call", "get_weather", '{"city": "Paris"}')]),
        (
            f"{CALL}\n{NOW_CALL}",
            [("call", "get_weather", '{"city": "Paris"}'), ("call", "now", "{}")],
        ),
        ("a <tool_ca", [("message", "a <tool_ca")]),
    ],
)
def test_replies_and_streams_say_the_same(renderer, said, shapes):
    gateway = saying(renderer, said)
    whole = answered(gateway, with_tools())
    assert shapes_of(whole["output"]) == shapes
    assert whole["status"] == "completed"
    assert {item["status"] for item in whole["output"]} == {"completed"}
    last = rebuilt(streamed(gateway, with_tools()))
    assert shapes_of(last["output"]) == shapes
    names = [item["id"] for reply in (whole, last) for item in reply["output"]]
    names += [item["call_id"] for item in whole["output"] if "call_id" in item]
    assert len(set(names)) == len(names)
    same = whole.keys() - {"id", "created_at", "completed_at", "output", "usage"}
    assert {name: whole[name] for name in same} == {name: last[name] for name in same}


def test_a_reply_says_what_was_asked(gateway):
    given = {
        "model": MODEL,
        "input": "hello",
        "instructions": "be brief",
        "tools": TOOLS[1:],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "max_output_tokens": 30,
        "temperature": 0.5,
        "top_p": 0.9,
        "metadata": {"a": "b"},
        "user": "me",
        "safety_identifier": "me too",
        "prompt_cache_key": "k",
        "store": False,
        "truncation": "disabled",
        "service_tier": "default",
    }
    whole = answered(gateway, given)
    told = {name: whole[name] for name in given.keys() - {"input", "tools"}}
    assert told == {name: given[name] for name in told}
    assert whole["tools"][0]["name"] == "now"
    [request] = gateway.requests
    params = request.params
    assert (params.max_new_tokens, params.temperature, params.top_p) == (30, 0.5, 0.9)
    assert prompt_of(gateway).startswith("<|im_start|>system\nbe brief")
    assert '{"name": "now"}' in prompt_of(gateway)


def test_usage_is_that_of_the_engine(gateway):
    gateway.forced_tokens = 2
    [first, second] = many(gateway, *[("POST", RESPONSES, body(explain_cache=True))] * 2)
    usage = second.json()["usage"]
    assert usage["input_tokens"] == len(gateway.requests[1].prompt) // 4 == 14
    details = {"cached_tokens": 13, "cache_write_tokens": 0}
    assert usage["input_tokens_details"] == details
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0, "forced_tokens": 2}
    assert usage["total_tokens"] == 14 + usage["output_tokens"]
    assert first.json()["usage"]["input_tokens_details"]["cached_tokens"] == 0
    assert second.json()["cache"][0]["matched_tokens"] == 13


def test_an_output_that_is_cut_is_incomplete(renderer):
    gateway = saying(renderer, "the quick brown fox")
    gateway.truncated = True
    for reply in (
        answered(gateway, body(max_output_tokens=2)),
        rebuilt(streamed(gateway, body(max_output_tokens=2))),
    ):
        assert reply["status"] == "incomplete"
        assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
        assert reply["output"][-1]["status"] == "incomplete"
        assert reply["completed_at"] is None
        assert reply["truncated"] is True
    answered(gateway, body(), default_max_tokens=7)
    assert gateway.requests[-1].params.max_new_tokens == 7


def test_logprobs_are_told_where_they_are_included(renderer):
    gateway = saying(renderer, "the quick fox")
    plain = answered(gateway, body())
    assert plain["output"][0]["content"][0]["logprobs"] == []
    assert gateway.requests[-1].output_logprobs is None
    for best in (0, 2):
        given = body(top_logprobs=best, **LOGPROBS)
        whole, last = answered(gateway, given), rebuilt(streamed(gateway, given))
        entries = whole["output"][0]["content"][0]["logprobs"]
        assert entries == last["output"][0]["content"][0]["logprobs"]
        assert "".join(entry["token"] for entry in entries) == "the quick fox"
        assert {len(entry["top_logprobs"]) for entry in entries} == {best}
        assert gateway.requests[-1].output_logprobs == best


def test_logprobs_of_a_message_are_none_of_its_calls(renderer):
    gateway = saying(renderer, f"Sure. {CALL}")
    last = rebuilt(streamed(gateway, with_tools(**LOGPROBS)))
    entries = last["output"][0]["content"][0]["logprobs"]
    assert "".join(entry["token"] for entry in entries).rstrip() == "Sure."


def test_logprobs_of_tokens_that_come_together_go_to_their_items():
    output = Output(lambda: "call_1")
    heard = [Thought("why"), Said("é b"), Begun(0, "f"), Argued(0, "{}")]
    tokens = ["</think>", "", "", "é", " b", "<tool", "_call>", "{}"]
    entries = [{"token": token, "bytes": [1]} for token in tokens]
    entries[1]["bytes"] = []  # a control token
    output.add(heard[:1], [{"token": "why"}])
    output.add(heard[1:], entries)
    output.close("completed")
    message = output.items("completed")[1]
    told = [entry["token"] for entry in message["content"][0]["logprobs"]]
    assert told == ["", "é", " b"]


# ---- what is enforced ----


def test_tools_are_bound_as_those_of_chat(renderer):
    gateway = saying(renderer, CALL)
    answered(gateway, with_tools())
    assert format_of(gateway)["type"] == "triggered_tags"
    answered(gateway, with_tools(tool_choice="required"))
    assert format_of(gateway)["type"] == "tag"
    answered(gateway, with_tools(tool_choice={"type": "function", "name": "now"}))
    made = format_of(gateway)["content"]
    assert made["stop_after_first"] is True
    assert [tag["begin"].split('"')[3] for tag in made["tags"]] == ["now"]
    one = {"type": "function", "name": "now"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [one]}
    answered(gateway, with_tools(tool_choice=allowed))
    made = format_of(gateway)["content"]
    assert [tag["begin"].split('"')[3] for tag in made["tags"]] == ["now"]
    assert made["stop_after_first"] is False
    assert "get_weather" in prompt_of(gateway), "the prompt shows all"
    answered(gateway, with_tools(tool_choice="none"))
    assert format_of(gateway) == {"type": "any_text", "excludes": ["<tool_call>", "</tool_call>"]}
    answered(gateway, with_tools(parallel_tool_calls=False))
    assert format_of(gateway)["tags"][0]["content"]["stop_after_first"] is True


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ({"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}, "json_schema"),
        ({"type": "json_object"}, "json_object"),
        ({"type": "text"}, None),
    ],
)
def test_the_format_of_an_answer(renderer, form, kind):
    gateway = saying(renderer, '{"a": 1}')
    whole = answered(gateway, body(text={"format": form}))
    constraint = gateway.requests[-1].constraint
    assert (None if constraint is None else constraint.kind) == kind
    assert whole["text"]["format"] == form
    if kind == "json_schema":
        answered(gateway, with_tools(text={"format": form}))
        made = format_of(gateway)
        assert [part["type"] for part in made["elements"]] == ["tag", "json_schema"]


def test_tokens_are_counted_as_they_are_computed(renderer):
    gateway = saying(renderer, f"Sure. {CALL}")
    told = {"input": "hello", "instructions": "be brief", "tools": TOOLS}
    path = RESPONSES + "/input_tokens"
    replies = many(
        gateway,
        ("POST", path, told),
        ("POST", RESPONSES, told),
        ("POST", path, {"input": "and?", "previous_response_id": 1, "model": MODEL}),
        ("POST", RESPONSES, {"input": "and?", "previous_response_id": 1}),
        ("POST", path, {"input": "a " * 20_000}),
    )
    counts = [replies[i].json()["input_tokens"] for i in (0, 2, 4)]
    assert counts[:2] == [len(request.prompt) // 4 for request in gateway.requests]
    assert counts[:2] == [replies[i].json()["usage"]["input_tokens"] for i in (1, 3)]
    assert counts[2] > gateway.info.context_len
    assert replies[0].json()["object"] == "response.input_tokens"
    for given, param in (
        ({"input": []}, "input"),
        ({"input": "x", "temperature": 1}, "temperature"),
        ({"input": "x", "personality": "friendly"}, "personality"),
        ({"input": "x", "tools": ["x"]}, "tools[0]"),
    ):
        assert error_of(ask(gateway, path, given), 400)["param"] == param
    assert error_of(ask(gateway, path, {"input": "x", "model": "y"}), 404)["param"] == "model"
