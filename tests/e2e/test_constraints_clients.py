"""Clients that want objects, against a served SmolLM2: what they send is enforced, and what they
get parses."""

from __future__ import annotations

import enum
import json
import pathlib
from collections.abc import Iterator
from typing import Literal

import instructor
import openai
import pytest
from pydantic import BaseModel, Field

import radixserve as rs
from tests.e2e.test_serve import Server, no_leak

pytestmark = pytest.mark.model


class Kind(enum.Enum):
    HOME = "home"
    WORK = "work"


class Address(BaseModel):
    kind: Kind
    street: str = Field(max_length=20)
    number: int = Field(ge=1, le=9999)


class Person(BaseModel):
    name: str = Field(max_length=24)
    age: int | None = Field(ge=0, le=150)
    role: Literal["engineer", "writer"]
    addresses: list[Address] = Field(min_length=1, max_length=2)
    score: float = Field(ge=0, le=1)


MESSAGES = [{"role": "user", "content": "Ada Lovelace, 36, wrote programs. She lived in London."}]
GREEDY = {"model": "tiny", "temperature": 0, "max_tokens": 160}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("serve") / "log"
    running = Server(pathlib.Path("smollm2"), log)
    try:
        yield running.wait_ready()
        no_leak(running)
    finally:
        running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as each:
        yield each


def test_parse_gives_the_model(client: openai.OpenAI) -> None:
    reply = client.chat.completions.parse(messages=MESSAGES, response_format=Person, **GREEDY)
    [choice] = reply.choices
    assert isinstance(choice.message.parsed, Person)
    assert choice.finish_reason == "stop"
    assert choice.message.parsed.addresses[0].kind in Kind
    usage = reply.usage
    forced = usage.completion_tokens_details.forced_tokens
    assert usage.completion_tokens_details.reasoning_tokens == 0
    assert forced > 20, "property names and punctuation are forced"


def test_parse_by_its_beta_name(client: openai.OpenAI) -> None:
    reply = client.beta.chat.completions.parse(messages=MESSAGES, response_format=Address, **GREEDY)
    assert isinstance(reply.choices[0].message.parsed, Address)


def test_a_stream_parses_at_its_end(client: openai.OpenAI) -> None:
    options = {"messages": MESSAGES, "response_format": Person, **GREEDY}
    with client.chat.completions.stream(**options) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Person)
    assert "".join(deltas) == final.choices[0].message.content


@pytest.mark.parametrize("n", [1, 3])
def test_hot_sampling_parses_as_well(client: openai.OpenAI, n: int) -> None:
    for seed in range(3):
        options = {**GREEDY, "temperature": 1.5, "seed": seed, "n": n}
        reply = client.chat.completions.parse(messages=MESSAGES, response_format=Person, **options)
        assert all(isinstance(choice.message.parsed, Person) for choice in reply.choices)


def test_the_json_schema_mode_of_instructor(client: openai.OpenAI) -> None:
    """What instructor 1.17 sends in Mode.JSON_SCHEMA, and what it does with the reply. It cannot be
    installed beside the openai client of the gate, whose jiter is newer than it allows."""
    wanted = {"name": Person.__name__, "schema": Person.model_json_schema()}
    reply = client.chat.completions.create(
        messages=MESSAGES,
        response_format={"type": "json_schema", "json_schema": wanted},
        **GREEDY,
    )
    assert reply.choices[0].finish_reason != "length"  # for which it raises
    person = Person.model_validate_json(reply.choices[0].message.content)
    assert isinstance(person.addresses[0], Address)


def test_its_json_mode_too(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        messages=MESSAGES, response_format={"type": "json_object"}, **GREEDY
    )
    assert isinstance(json.loads(reply.choices[0].message.content), dict)


def test_what_is_cut_short_still_parses(client: openai.OpenAI) -> None:
    options = {**GREEDY, "max_tokens": 70}
    reply = client.chat.completions.create(
        messages=MESSAGES,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "p", "schema": Person.model_json_schema()},
        },
        **options,
    )
    [choice] = reply.choices
    Person.model_validate_json(choice.message.content)
    if choice.finish_reason == "length":
        assert choice.truncated is True


def test_a_refused_schema_is_the_clients_own_error(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=a)b"}}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(
                messages=MESSAGES,
                stream=stream,
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": schema},
                },
                **GREEDY,
            )
        assert refused.value.param == "response_format"
        assert refused.value.code == "unsupported_schema"
        assert "#/properties/a/pattern" in refused.value.message


@rs.function
def card(s, text):
    s += rs.user(f"{text} Answer as JSON.")
    s += rs.assistant(rs.gen("person", json_schema=Address, max_tokens=80, temperature=0))
    s += rs.user("How old is she?")
    with s.assistant():
        s += "She is "
        s += rs.gen("age", dtype=int, max_tokens=4, temperature=0)
        s += " years old, and works as "
        s += rs.gen("job", choice=["an engineer", "a writer"], temperature=0)


def test_programs_bind_their_texts(server: Server) -> None:
    backend = rs.RuntimeEndpoint(server.url)
    try:
        state = card.run(text=MESSAGES[0]["content"], backend=backend)
    finally:
        backend.close()
    Address.model_validate_json(state["person"])
    assert state["age"].isdigit()
    assert state["job"] in ("an engineer", "a writer")
    assert state.get_meta_info("person")["forced_tokens"] > 5


def test_what_cannot_be_enforced_is_validated(client: openai.OpenAI) -> None:
    tags = {"type": "array", "uniqueItems": True, "items": {"type": "string", "maxLength": 8}}
    schema = {
        "type": "object",
        "properties": {"tags": {**tags, "minItems": 2, "maxItems": 3}},
        "required": ["tags"],
        "additionalProperties": False,
    }
    reply = client.chat.completions.create(
        messages=MESSAGES,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        extra_body={"constraint_mode": "validate"},
        **GREEDY,
    )
    [choice] = reply.choices
    found = json.loads(choice.message.content)["tags"]
    assert 2 <= len(found) <= 3
    assert [each["keyword"] for each in choice.constraint_violations] == (
        [] if len(set(found)) == len(found) else ["uniqueItems"]
    )


def test_instructor_in_json_schema_mode(client: openai.OpenAI) -> None:
    patched = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    person, raw = patched.chat.completions.create_with_completion(
        messages=MESSAGES, response_model=Person, max_retries=0, **GREEDY
    )
    assert isinstance(person, Person)
    assert raw.choices[0].finish_reason == "stop"
