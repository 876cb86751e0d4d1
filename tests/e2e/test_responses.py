"""/v1/responses on a served engine: chains in the cache, what is bound, cancelling, the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from tests.api.dialects import DIALECTS, Talk
from tests.api.response_talk import WEATHER
from tests.e2e.test_serve import Server, no_leak, post

KEPT = 4
ANSWER = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(tiny_model, tmp_path_factory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("responses") / "log"
    running = Server(tiny_model, log, "--store-responses", str(KEPT), "--audit")
    try:
        yield running.wait_ready()
        no_leak(running)
    finally:
        running.stop()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as each:
        yield each


def test_a_chain_finds_what_it_computed(client: openai.OpenAI) -> None:
    given: dict[str, Any] = {"model": "tiny", "max_output_tokens": 20, "temperature": 0}
    long = "the quick brown fox jumps over the lazy dog " * 12
    first = client.responses.create(input=long, **given)
    assert first.usage is not None
    second = client.responses.create(input="and?", previous_response_id=first.id, **given)
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens - 1
    with client.responses.stream(input=long, **given) as events:
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == first.output_text


TALKS = [
    Talk(turns=[("user", "one two three")], said="", system="be brief"),
    Talk(
        turns=[("user", "one"), ("assistant", "two"), ("user", "three")],
        said="",
        schema=ANSWER,
        max_tokens=60,
    ),
    Talk(
        turns=[("user", "?")],
        said="",
        tools=[("get_weather", "the weather", {**ANSWER})],
        choice="required",
        many=False,
        max_tokens=90,
    ),
]


@pytest.mark.parametrize("talk", TALKS)
def test_every_dialect_gets_the_same_of_the_engine(server: Server, talk: Talk) -> None:
    replies = []
    for dialect in DIALECTS:
        body = dialect.body(replace(talk, temperature=0)) | {"model": "tiny"}
        response = post(server, dialect.path, **body)
        assert response.status_code == 200, response.text
        replies.append(dialect.reply(response.json()))
    first, *others = replies
    assert first.pieces
    for reply in others:
        assert (reply.pieces, reply.end, reply.truncated) == (
            first.pieces,
            first.end,
            first.truncated,
        )
        assert reply.usage[::2] == first.usage[::2]
    for piece in first.pieces:
        if piece[0] == "called" or talk.schema:
            jsonschema.validate(json.loads(piece[-1]), ANSWER)


@pytest.mark.parametrize("stream", [False, True])
def test_calls_and_answers_are_valid_however_hot(client: openai.OpenAI, stream: bool) -> None:
    form = {"format": {"type": "json_schema", "name": "x", "schema": ANSWER, "strict": True}}
    for seed in range(3):
        given: dict[str, Any] = {
            "model": "tiny",
            "input": "?",
            "temperature": 1.5,
            "max_output_tokens": 84,
            "extra_body": {"seed": seed},
        }
        called = client.responses.create(
            **given, tools=[WEATHER], tool_choice="required", stream=stream
        )
        answered = client.responses.create(**given, text=form, stream=stream)
        if stream:
            called, answered = (list(each)[-1].response for each in (called, answered))
        for call in called.output:
            schema = WEATHER["parameters"]
            jsonschema.validate(json.loads(call.arguments), schema)
        assert called.output
        jsonschema.validate(json.loads(answered.output_text), ANSWER)
        for reply in (called, answered):
            assert reply.status in ("completed", "incomplete")
            assert (reply.status == "incomplete") == (reply.incomplete_details is not None)


def test_cancelling_ends_it_in_the_engine(client: openai.OpenAI, server: Server) -> None:
    endless = {"temperature": 1, "max_output_tokens": 6000, "extra_body": {"min_p": 0.0}}
    stream = client.responses.create(model="tiny", input="?", stream=True, **endless)
    name = next(stream).response.id
    assert client.responses.cancel(name).status == "cancelled"
    last = list(stream)[-1].response
    assert last.status in ("cancelled", "completed")  # it may have come to its end by itself
    assert client.responses.retrieve(name).status == last.status
    no_leak(server)


def test_a_client_that_leaves_ends_it_in_the_engine(client: openai.OpenAI, server: Server) -> None:
    stream = client.responses.create(
        model="tiny", input="?", stream=True, max_output_tokens=6000, temperature=1
    )
    next(stream)
    stream.close()
    no_leak(server)


def test_the_oldest_go(client: openai.OpenAI, server: Server) -> None:
    names = [
        client.responses.create(model="tiny", input=str(i), max_output_tokens=1).id
        for i in range(KEPT + 1)
    ]
    url = f"{server.url}/v1/responses"
    statuses = [httpx.get(f"{url}/{name}", timeout=10).status_code for name in names]
    assert statuses == [404] + [200] * KEPT
