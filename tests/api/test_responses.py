"""Responses over a scripted model: replies, their streams, chains of them."""

from __future__ import annotations

import asyncio

import pytest

from tests.api.response_talk import (
    RESPONSES,
    TOOLS,
    answered,
    body,
    events_of,
    many,
    prompt_of,
    rebuilt,
    shapes_of,
    streamed,
    with_tools,
)
from tests.api.scripted import MODEL, ScriptedGateway, client
from tests.api.talk import ask, error_of
from tests.api.tool_talk import CALL, NOW_CALL, format_of

LOGPROBS = {"include": ["message.output_text.logprobs"]}


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, context_len=4096)


def saying(renderer, *outputs):
    return ScriptedGateway(renderer, outputs, context_len=4096)


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
    assert "".join(entry["token"] for entry in entries).startswith("Sure.")
    assert "Paris" not in "".join(entry["token"] for entry in entries)


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
    assert format_of(gateway) == {"type": "any_text", "excludes": ["<tool_call>"]}
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


# ---- chains ----


def test_a_response_goes_on_from_another(renderer):
    gateway = saying(renderer, "fine")
    replies = many(
        gateway,
        ("POST", RESPONSES, body(input="one", instructions="be brief")),
        ("POST", RESPONSES, body(input="two", previous_response_id=0)),
        ("POST", RESPONSES, body(input="three", previous_response_id=1, instructions="be long")),
    )
    assert [reply.status_code for reply in replies] == [200] * 3
    turns = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\nfine<|im_end|>\n"
    ask_ = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    system = "<|im_start|>system\n{}<|im_end|>\n"
    one, two, three = (prompt_of(gateway, i) for i in range(3))
    assert one == system.format("be brief") + ask_.format("one")
    assert two == turns.format("one") + ask_.format("two")
    three_turns = turns.format("one") + turns.format("two") + ask_.format("three")
    assert three == system.format("be long") + three_turns


def test_a_stream_is_kept_as_well(renderer):
    gateway = saying(renderer, CALL)

    async def run():
        async with client(gateway) as http:
            text = (await http.post(RESPONSES, json=with_tools(stream=True))).text
            last = rebuilt(events_of(text))
            kept = (await http.get(f"{RESPONSES}/{last['id']}")).json()
            result = {
                "type": "function_call_output",
                "call_id": last["output"][0]["call_id"],
                "output": "sunny",
            }
            gateway.outputs = ["so it is sunny"]
            more = {"input": [result], "previous_response_id": last["id"], "tools": TOOLS}
            after = (await http.post(RESPONSES, json=more)).json()
            return last, kept, after

    last, kept, after = asyncio.run(run())
    assert kept == last
    assert shapes_of(after["output"]) == [("message", "so it is sunny")]
    assert after["previous_response_id"] == last["id"]
    assert "<result>\nsunny\n</result>" in prompt_of(gateway)


def test_what_is_not_to_be_kept_is_not(gateway):
    replies = many(
        gateway,
        ("POST", RESPONSES, body(store=False)),
        ("GET", RESPONSES + "/{0}", None),
        ("POST", RESPONSES, body(previous_response_id=0)),
    )
    assert replies[0].json()["store"] is False
    assert error_of(replies[1], 404)["code"] == "response_not_found"
    error = error_of(replies[2], 404)
    assert (error["code"], error["param"]) == (
        "previous_response_not_found",
        "previous_response_id",
    )


def test_a_server_may_keep_nothing(gateway):
    assert answered(gateway, body(), store_responses=0)["store"] is False
    error = error_of(ask(gateway, RESPONSES, body(store=True), store_responses=0), 400)
    assert error["param"] == "store"
    assert answered(gateway, body(store=False), store_responses=0)["store"] is False


def test_what_is_too_long_to_be_kept_says_so(gateway):
    long = body(instructions="x" * 2**20, max_output_tokens=1)
    gateway.info = gateway.info.__class__(
        model=MODEL, context_len=2**22, kv_tokens=2**22, vocab_size=10_000, dtype="float32"
    )
    assert answered(gateway, long, store_mib=1)["store"] is False


def test_one_response_is_found_deleted_and_not_cancelled(gateway):
    replies = many(
        gateway,
        ("POST", RESPONSES, body()),
        ("GET", RESPONSES + "/{0}", None),
        ("POST", RESPONSES + "/{0}/cancel", None),
        ("DELETE", RESPONSES + "/{0}", None),
        ("GET", RESPONSES + "/{0}", None),
        ("DELETE", RESPONSES + "/{0}", None),
        ("POST", RESPONSES + "/{0}/cancel", None),
        ("GET", RESPONSES + "/{0}/input_items", None),
    )
    made = replies[0].json()
    assert replies[1].json() == replies[2].json() == made
    assert replies[3].json() == {"id": made["id"], "object": "response", "deleted": True}
    for reply in replies[4:]:
        assert error_of(reply, 404)["code"] == "response_not_found"


def test_a_chain_outlives_what_it_began_with(renderer):
    gateway = saying(renderer, "fine")
    replies = many(
        gateway,
        ("POST", RESPONSES, body(input="one")),
        ("POST", RESPONSES, body(input="two", previous_response_id=0)),
        ("DELETE", RESPONSES + "/{0}", None),
        ("POST", RESPONSES, body(input="three", previous_response_id=1)),
        ("POST", RESPONSES, body(input="four", previous_response_id=0)),
    )
    assert [reply.status_code for reply in replies] == [200, 200, 200, 200, 404]
    assert "one" in prompt_of(gateway)


def test_input_items_are_those_it_was_made_from(renderer):
    gateway = saying(renderer, "fine")
    path = RESPONSES + "/{1}/input_items"
    replies = many(
        gateway,
        ("POST", RESPONSES, body(input="one")),
        ("POST", RESPONSES, body(input="two", previous_response_id=0)),
        ("GET", f"{path}?order=asc", None),
        ("GET", f"{path}?limit=2", None),
    )
    items = replies[2].json()["data"]
    assert [item["role"] for item in items] == ["user", "assistant", "user"]
    assert items[1] == replies[0].json()["output"][0]
    first = replies[3].json()
    assert first["data"] == items[:0:-1]
    assert (first["first_id"], first["last_id"]) == (items[2]["id"], items[1]["id"])
    assert first["has_more"] is True
    assert first["object"] == "list"
