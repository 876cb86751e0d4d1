"""Responses that are kept: chains of them, finding and deleting one, and what is kept of it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from radixserve.api.responses import exchange, items
from tests.api.response_talk import (
    RESPONSES,
    TOOLS,
    answered,
    body,
    events_of,
    many,
    prompt_of,
    rebuilt,
    saying,
    shapes_of,
    with_tools,
)
from tests.api.scripted import ScriptedGateway, client
from tests.api.talk import ask, error_of
from tests.api.tool_talk import CALL


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, context_len=4096)


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


def test_what_is_too_long_to_be_kept_says_so(renderer):
    gateway = ScriptedGateway(renderer, context_len=2**22, kv_tokens=2**22)
    long = body(instructions="x" * 2**20, max_output_tokens=1)
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


def test_a_long_chain_is_read_off_the_loop(renderer, monkeypatch):
    """Like a long body, so that other requests go on."""
    names = []
    inner = exchange.messages_of

    def watched(*given):
        names.append(threading.current_thread().name)
        return inner(*given)

    monkeypatch.setattr(exchange, "messages_of", watched)
    gateway = ScriptedGateway(renderer, context_len=2**20, kv_tokens=2**20)
    long = body(input="a" * 300_000, max_output_tokens=1)
    more = body(previous_response_id=0, max_output_tokens=1)
    replies = many(gateway, *[("POST", RESPONSES, each) for each in (long, more, body())])
    assert [reply.status_code for reply in replies] == [200] * 3
    assert [name.startswith("large-body") for name in names] == [True, True, False]


def test_a_chain_of_too_many_items_is_refused(gateway, monkeypatch):
    monkeypatch.setattr(items, "MAX_ITEMS", 4)
    replies = many(
        gateway,
        ("POST", RESPONSES, body()),
        ("POST", RESPONSES, body(previous_response_id=0)),
        ("POST", RESPONSES, body(previous_response_id=1)),
    )
    assert [reply.status_code for reply in replies] == [200, 200, 400]
    assert error_of(replies[2], 400)["param"] == "input"
