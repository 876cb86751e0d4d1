"""The official client against /v1/responses, streamed and not, sync and async."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from radixserve.api.app import create_app
from radixserve.config.schema import Config, HttpConfig
from tests.api.listening import listening
from tests.api.response_talk import TOOLS, prompt_of
from tests.api.scripted import MODEL
from tests.api.tool_talk import Turns, written

STREAM_OR_NOT = pytest.mark.parametrize("stream", [False, True])
KEYS = HttpConfig(api_key=("one", "two"))


@pytest.fixture(scope="module")
def gateway(renderer):
    return Turns(renderer, context_len=8192)


@pytest.fixture(scope="module")
def url(gateway):
    with listening(create_app(gateway, Config(http=KEYS))) as each:
        yield f"{each}/v1"


@pytest.fixture
def client(url, gateway):
    gateway.requests.clear()
    with openai.OpenAI(base_url=url, api_key="one", max_retries=0) as each:
        yield each


def replied(client, stream, **given):
    """The response, in one of the ways in which the client asks for it."""
    given = {"model": MODEL, "max_output_tokens": 300, **given}
    if not stream:
        return client.responses.create(**given)
    with client.responses.stream(**given) as events:
        for _ in events:
            pass
        return events.get_final_response()


@STREAM_OR_NOT
def test_an_agent_loop_over_kept_responses(client, gateway, stream):
    gateway.turns = [
        "I look. " + written("get_weather", city="Rome") + "\n" + written("now"),
        written("get_weather", city="Oslo"),
        "warm and cold",
    ]
    results = {"Rome": "30", "Oslo": "-3", None: "noon"}
    given, last, rounds = "?", None, 0
    while given:
        last = replied(
            client,
            stream,
            input=given,
            tools=TOOLS,
            previous_response_id=last.id if last else openai.omit,
        )
        given = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": results[json.loads(call.arguments).get("city")],
            }
            for call in last.output
            if call.type == "function_call"
        ]
        rounds += 1
    assert (rounds, last.output_text) == (3, "warm and cold")
    prompt = prompt_of(gateway)
    assert prompt.index("I look.") < prompt.index("<result>\n30") < prompt.index("<result>\nnoon")
    assert prompt.index("<result>\nnoon") < prompt.index('"Oslo"') < prompt.index("<result>\n-3")
    items = client.responses.input_items.list(last.id, order="asc", limit=3)
    kinds = [item.type for item in items]  # the client asks for the further pages itself
    result = ["function_call_output"]
    assert (
        kinds == ["message"] * 2 + ["function_call"] * 2 + result * 2 + ["function_call"] + result
    )


@STREAM_OR_NOT
def test_an_agent_loop_that_carries_its_own_items(client, gateway, stream):
    """store: false; what comes out goes in again as the client dumps it."""
    gateway.turns = [written("get_weather", city="Rome"), "warm"]
    items = [{"role": "user", "content": "?"}]
    first = replied(client, stream, input=items, tools=TOOLS, store=False)
    [call] = first.output
    items += first.output
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "30"})
    last = replied(client, stream, input=items, tools=TOOLS, store=False)
    assert last.output_text == "warm"
    again = [*items, *last.output, {"role": "user", "content": "sure?"}]
    replied(client, stream, input=[i if isinstance(i, dict) else i.to_dict() for i in again])
    prompt = prompt_of(gateway)
    assert '"city": "Rome"' in prompt
    assert prompt.endswith("user\nsure?<|im_end|>\n<|im_start|>assistant\n")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(last.id)


def test_items_are_referred_to_by_their_names(client, gateway):
    gateway.turns = [written("now"), "noon"]
    first = client.responses.create(model=MODEL, input="?", tools=TOOLS)
    [call] = first.output
    [asked] = client.responses.input_items.list(first.id).data
    items = [
        {"type": "item_reference", "id": asked.id},
        {"id": call.id},
        {"type": "function_call_output", "call_id": call.call_id, "output": "12"},
    ]
    reply = client.responses.create(model=MODEL, input=items)
    assert reply.output_text == "noon"
    assert "<result>\n12\n</result>" in prompt_of(gateway)
    assert "user\n?<|im_end|>" in prompt_of(gateway)


class Answer(BaseModel):
    city: str
    kind: Literal["warm", "cold"]


class Weather(BaseModel):
    """the weather in a city"""

    city: str


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the client's own, of its types
@STREAM_OR_NOT
def test_answers_and_arguments_are_parsed(client, gateway, stream):
    gateway.turns = [written("Weather", city="Oslo"), '{"city": "Oslo", "kind": "cold"}']
    tools = [openai.pydantic_function_tool(Weather)]
    flat = [{"type": "function", **tool["function"]} for tool in tools]
    given = {"model": MODEL, "tools": flat, "text_format": Answer}
    first = _parsed(client, stream, input="?", **given)
    [call] = first.output
    assert json.loads(call.arguments) == {"city": "Oslo"}
    items = [
        {"role": "user", "content": "?"},
        *first.output,
        {"type": "function_call_output", "call_id": call.call_id, "output": "-3"},
    ]
    last = _parsed(client, stream, input=items, **given)
    assert last.output_parsed == Answer(city="Oslo", kind="cold")
    _parsed(client, stream, input=[*items, *last.output], **given)
    constraint = json.loads(gateway.requests[0].constraint.value)
    assert [part["type"] for part in constraint["format"]["elements"]] == ["tag", "json_schema"]


def _parsed(client, stream, **given):
    if not stream:
        return client.responses.parse(**given)
    with client.responses.stream(**given) as events:
        return events.get_final_response()


def test_events_of_a_stream(client, gateway):
    gateway.turns = ["fine. " + written("now")]
    with client.responses.stream(model=MODEL, input="?", tools=TOOLS) as events:
        kinds = [event.type.removeprefix("response.") for event in events]
    told = list(dict.fromkeys(kinds))
    assert told == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "completed",
    ]


def test_the_async_client(url, gateway):
    gateway.turns = ["fine"]

    async def go():
        async with openai.AsyncOpenAI(base_url=url, api_key="one", max_retries=0) as each:
            first = await each.responses.create(model=MODEL, input="?")
            async with each.responses.stream(
                model=MODEL, input="and?", previous_response_id=first.id
            ) as events:
                texts = [e.delta async for e in events if e.type == "response.output_text.delta"]
            return first, "".join(texts)

    first, streamed = asyncio.run(go())
    assert first.output_text == streamed == "fine"
    assert "fine<|im_end|>" in prompt_of(gateway)


def test_errors_are_the_client_s_own(client, gateway):
    gateway.turns = ["x"]
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model=MODEL, input="?", previous_response_id="resp_0")
    assert missing.value.code == "previous_response_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="?", background=True)
    assert refused.value.param == "background"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="none").responses.retrieve("resp_0")


# ---- under way ----


def wait_until(is_so):
    deadline = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_response_under_way_is_shown_and_cancelled(client, url, gateway):
    gateway.turns = ["the quick brown fox"]
    gateway.gate = threading.Event()
    before = gateway.at_gate
    try:
        stream = client.responses.create(model=MODEL, input="?", stream=True)
        name = next(stream).response.id
        wait_until(lambda: gateway.at_gate > before)
        live = client.responses.retrieve(name)
        assert (live.status, live.output_text) == ("in_progress", "the quick")
        with pytest.raises(openai.BadRequestError):
            client.responses.delete(name)
        other = client.with_options(api_key="two")
        for verb in (other.responses.retrieve, other.responses.cancel, other.responses.delete):
            with pytest.raises(openai.NotFoundError):
                verb(name)
        assert client.responses.cancel(name).status == "cancelled"
        last = list(stream)[-1]
    finally:
        gateway.gate = None
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    assert last.response.output[0].status == "incomplete"
    assert last.response.incomplete_details is None
    kept = client.responses.retrieve(name)
    assert kept == client.responses.cancel(name) == last.response
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="?", previous_response_id=name)
    assert refused.value.param == "previous_response_id"
    client.responses.delete(name)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(name)


def test_a_stream_that_is_closed_ends_its_response(client, gateway):
    gateway.turns = ["the quick brown fox"]
    gateway.gate = threading.Event()
    try:
        stream = client.responses.create(model=MODEL, input="?", stream=True)
        name = next(stream).response.id
        early = len(gateway.closed_early)
        stream.close()
        wait_until(lambda: len(gateway.closed_early) == early + 1)
    finally:
        gateway.gate = None
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(name)
