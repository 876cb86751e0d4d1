"""Anthropic's official client against a real server socket: whole and streamed, loops of tools."""

from __future__ import annotations

import asyncio

import anthropic
import pytest
from anthropic import beta_tool
from pydantic import BaseModel

import radixserve as rs
from radixserve.api.app import create_app
from radixserve.config.schema import Config, HttpConfig
from radixserve.errors import InternalError, QueueFull
from tests.api.anthropic_talk import HELLO, TOOL, result
from tests.api.listening import listening
from tests.api.scripted import MODEL
from tests.api.tool_talk import Turns, prompt_of, written

STREAM_OR_NOT = pytest.mark.parametrize("stream", [False, True])
SAID = "Paris is the capital 🦙 of France."
GIVEN = {"model": MODEL, "max_tokens": 400, "messages": HELLO}


@pytest.fixture(scope="module")
def served(renderer):
    gateway = Turns(renderer, context_len=8192)
    with listening(create_app(gateway, Config(http=HttpConfig(api_key=("key",))))) as url:
        yield gateway, url


@pytest.fixture
def gateway(served):
    gateway, _ = served
    gateway.requests.clear()
    gateway.turns = [SAID]
    gateway.refusal = gateway.failure = None
    return gateway


@pytest.fixture
def client(served, gateway):
    with anthropic.Anthropic(base_url=served[1], api_key="key", max_retries=0) as each:
        yield each


# ---- one call ----


def test_a_message(client):
    message = client.messages.create(**GIVEN, system="be brief", metadata={"user_id": "me"})
    assert isinstance(message, anthropic.types.Message)
    [block] = message.content
    assert (block.type, block.text) == ("text", SAID)
    assert (message.stop_reason, message.model) == ("end_turn", MODEL)
    assert message.usage.output_tokens > 0
    assert message._request_id


def test_a_stream_of_raw_events(client):
    with client.messages.create(**GIVEN, stream=True) as stream:
        kinds = [event.type for event in stream]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_a_stream_through_the_clients_accumulator(client):
    with client.messages.stream(**GIVEN, stop_sequences=["France"]) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == message.content[0].text == SAID.partition("France")[0]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "France")
    usage = client.messages.create(**GIVEN, stop_sequences=["France"]).usage
    assert message.usage.output_tokens == usage.output_tokens
    told = message.usage
    assert told.input_tokens + told.cache_read_input_tokens == (
        usage.input_tokens + usage.cache_read_input_tokens
    )


def test_on_a_loop(served, gateway):
    async def go():
        async with anthropic.AsyncAnthropic(base_url=served[1], api_key="key") as each:
            whole = await each.messages.create(**GIVEN)
            async with each.messages.stream(**GIVEN) as stream:
                streamed = await stream.get_final_message()
            count = await each.messages.count_tokens(model=MODEL, messages=HELLO)
        return whole, streamed, count.input_tokens

    whole, streamed, count = asyncio.run(go())
    assert whole.content[0].text == streamed.content[0].text == SAID
    assert count == len(gateway.requests[0].prompt) // 4


def test_a_begun_answer_goes_on(client, gateway):
    client.messages.create(
        **{**GIVEN, "messages": [*HELLO, {"role": "assistant", "content": "So"}]}
    )
    assert prompt_of(gateway).endswith("<|im_start|>assistant\nSo")


def test_sampling_that_newer_clients_left_out(client, gateway):
    client.messages.create(**GIVEN, extra_body={"temperature": 0.5, "top_k": 3, "top_p": 0.5})
    params = gateway.requests[-1].params
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 3, 0.5)


def test_the_model_that_is_served(client):
    assert [model.id for model in client.models.list()] == [MODEL]


class Total(BaseModel):
    people: int


def test_an_answer_is_parsed(client, gateway):
    gateway.turns = ['{"people": 5}']
    message = client.messages.parse(**GIVEN, output_format=Total)
    assert message.parsed_output == Total(people=5)
    assert gateway.requests[-1].constraint.kind == "json_schema"
    with client.messages.stream(**GIVEN, output_format=Total) as stream:
        assert stream.get_final_message().parsed_output == Total(people=5)
    again = [*HELLO, message.to_param(), *HELLO]
    assert client.messages.create(**{**GIVEN, "messages": again}).content


# ---- errors ----


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"max_tokens": 0}, anthropic.BadRequestError),
        ({"model": "other"}, anthropic.NotFoundError),
        ({"container": "x"}, anthropic.BadRequestError),
    ],
)
@STREAM_OR_NOT
def test_refusals(client, given, kind, stream):
    with pytest.raises(kind) as caught:
        client.messages.create(**{**GIVEN, **given}, stream=stream)
    assert caught.value.body["error"]["message"]
    assert caught.value.request_id


def test_a_wrong_key(served):
    wrong = anthropic.Anthropic(base_url=served[1], api_key="wrong", max_retries=0)
    with wrong, pytest.raises(anthropic.AuthenticationError):
        wrong.messages.create(**GIVEN)
    with anthropic.Anthropic(base_url=served[1], auth_token="key", max_retries=0) as each:
        assert each.messages.create(**GIVEN).content


def test_a_full_queue_is_tried_again(served, client, gateway):
    gateway.refusal = QueueFull("full")
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(**GIVEN)
    assert (caught.value.status_code, caught.value.type) == (529, "overloaded_error")


def test_a_stream_that_fails(client, gateway):
    gateway.failure = InternalError("broken")
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        client.messages.stream(**GIVEN) as stream,
    ):
        stream.until_done()
    assert caught.value.body["error"] == {"type": "api_error", "message": "broken"}


# ---- loops of tools ----

PEOPLE = {"Rome": 2_800_000, "Oslo": 700_000}
PEOPLE_TOOL = {
    "name": "people_of",
    "description": "how many people live in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
TURNS = [
    "Let me see. " + written("people_of", city="Rome"),
    written("people_of", city="Oslo") + written("people_of", city="Rome"),
    written("people_of", city="Utopia"),
    "3500000 people 🦙 live there.",
]


def asked(client, stream, **given):
    if not stream:
        return client.messages.create(**given)
    with client.messages.stream(**given) as events:
        return events.get_final_message()


@STREAM_OR_NOT
def test_an_agent_loop_to_its_end(client, gateway, stream):
    gateway.turns = TURNS
    messages = list(HELLO)
    calls = []
    while True:
        message = asked(client, stream, **{**GIVEN, "messages": messages, "tools": [PEOPLE_TOOL]})
        messages.append({"role": "assistant", "content": message.content})
        if message.stop_reason != "tool_use":
            break
        results = []
        for block in message.content:
            if block.type == "tool_use":
                city = block.input["city"]
                calls.append(city)
                known = city in PEOPLE
                told = str(PEOPLE[city]) if known else "no such city"
                results.append(result(told, block.id, is_error=not known))
        messages.append({"role": "user", "content": results})
    assert calls == ["Rome", "Oslo", "Rome", "Utopia"]
    assert message.stop_reason == "end_turn"
    assert message.content[0].text == "3500000 people 🦙 live there."
    prompt = prompt_of(gateway)
    assert "Let me see. \n<tool_call>" in prompt
    assert "<result>\n700000\n</result>\n<result>\n2800000\n</result>" in prompt
    assert "<result>\nError: no such city\n</result>" in prompt
    assert '\\"' not in prompt


@STREAM_OR_NOT
def test_the_clients_own_tool_runner(client, gateway, stream):
    """It first asks for a conversation that the server holds, and does without one when told."""
    gateway.turns = TURNS[:2] + TURNS[3:]
    seen = []

    @beta_tool
    def people_of(city: str) -> str:
        """how many people live in a city"""
        seen.append(city)
        return str(PEOPLE[city])

    runner = client.beta.messages.tool_runner(
        **GIVEN,
        tools=[people_of],
        stream=stream,
    )
    last = None
    for turn in runner:
        last = turn.get_final_message() if stream else turn
    assert seen == ["Rome", "Oslo", "Rome"]
    assert last.content[0].text == "3500000 people 🦙 live there."


@STREAM_OR_NOT
def test_a_tool_that_must_be_called(client, gateway, stream):
    gateway.turns = [written("get_weather", city="Oslo")]
    given = {**GIVEN, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}}
    message = asked(client, stream, **given)
    [block] = message.content
    assert (block.name, block.input, message.stop_reason) == (
        "get_weather",
        {"city": "Oslo"},
        "tool_use",
    )


# ---- programs ----


@rs.function
def talk(s):
    s += rs.system("be brief")
    s += rs.user("name a dog")
    s += rs.assistant("A " + rs.gen("x", max_tokens=40, stop=[" of"]))
    s += rs.user("another")
    s += rs.assistant(rs.gen("y", temperature=0.5))


@STREAM_OR_NOT
def test_a_program_on_the_backend_for_that_api(served, gateway, stream):
    backend = rs.Anthropic(MODEL, base_url=served[1], api_key="key")
    try:
        state = talk.run(backend=backend, stream=stream)
        assert (state["x"], state["y"]) == (SAID.partition(" of")[0], SAID)
        meta = state.get_meta_info("x")
        assert meta["finish_reason"] == {"type": "stop", "matched": " of"}
        assert meta["prompt_tokens"] == len(gateway.requests[0].prompt) // 4
    finally:
        backend.close()
    prompt = prompt_of(gateway)
    assert f"assistant\nA {state['x']}<|im_end|>" in prompt
    assert prompt.startswith("<|im_start|>system\nbe brief")
