"""Anthropic's official client and rs.Anthropic against a served engine."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import jsonschema
import pytest

import radixserve as rs
from tests.e2e.test_process import wait_until
from tests.e2e.test_serve import Server, no_leak

HELLO = [{"role": "user", "content": "the quick brown fox"}]
GIVEN: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 12}
GREEDY = {"temperature": 0}
TOOLS = [
    {
        "name": name,
        "input_schema": {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["n"],
        },
    }
    for name in ("add", "sub")
]
STREAM_OR_NOT = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module")
def server(tiny_model: pathlib.Path, tmp_path_factory) -> Iterator[Server]:
    flags = ("--audit", "--reasoning-parser", "think")
    running = Server(tiny_model, tmp_path_factory.mktemp("serve") / "log", *flags)
    try:
        yield running.wait_ready()
        no_leak(running)
    finally:
        running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as each:
        yield each


def asked(client: anthropic.Anthropic, stream: bool, **given: Any) -> anthropic.types.Message:
    if not stream:
        return client.messages.create(**given)
    with client.messages.stream(**given) as events:
        return events.get_final_message()


def test_streamed_and_whole_are_one_answer_and_that_of_chat(server, client) -> None:
    whole = asked(client, False, **GIVEN, extra_body=GREEDY)
    streamed = asked(client, True, **GIVEN, extra_body=GREEDY)
    chat = httpx.post(
        f"{server.url}/v1/chat/completions",
        json={"messages": HELLO, "max_tokens": 12, **GREEDY},
        timeout=60,
    ).json()
    assert whole.stop_reason == streamed.stop_reason == "max_tokens"
    texts = ["".join(b.text for b in m.content if b.type == "text") for m in (whole, streamed)]
    assert texts == [chat["choices"][0]["message"]["content"]] * 2
    assert streamed.usage.cache_read_input_tokens > 0
    total = chat["usage"]["prompt_tokens"]
    for usage in (whole.usage, streamed.usage):
        assert usage.input_tokens + usage.cache_read_input_tokens == total
        assert usage.output_tokens == 12
    assert client.messages.count_tokens(model="tiny", messages=HELLO).input_tokens == total


@pytest.mark.parametrize("bound", [False, True])
def test_the_first_event_knows_what_was_cached(client, bound) -> None:
    given = {**GIVEN, "max_tokens": 60, "system": f"the lazy dog {bound} " * 9}
    if bound:
        given |= {"tools": TOOLS, "tool_choice": {"type": "any"}}
    client.messages.create(**given)
    with client.messages.create(**given, stream=True) as stream:
        events = list(stream)
    [first], [last] = (
        [e for e in events if e.type == t] for t in ("message_start", "message_delta")
    )
    assert last.usage.cache_read_input_tokens > 0
    for name in ("input_tokens", "cache_read_input_tokens"):
        assert getattr(first.message.usage, name) == getattr(last.usage, name)


@STREAM_OR_NOT
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "sub"}])
def test_calls_satisfy_their_schemas(client, stream, choice) -> None:
    given = {**GIVEN, "max_tokens": 200, "tools": TOOLS}
    message = asked(client, stream, **given, tool_choice=choice)
    assert message.stop_reason in ("tool_use", "max_tokens")
    assert message.content
    for block in message.content:
        assert block.type == "tool_use"
        assert block.name in ([choice["name"]] if "name" in choice else ["add", "sub"])
        jsonschema.validate(block.input, TOOLS[0]["input_schema"])
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "7"}
        for block in message.content
    ]
    turns = [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    again = asked(client, stream, **{**given, "messages": [*HELLO, *turns], "max_tokens": 9})
    assert again.usage.cache_read_input_tokens >= message.usage.input_tokens


@STREAM_OR_NOT
def test_an_answer_satisfies_its_schema(client, stream) -> None:
    schema = {**TOOLS[0]["input_schema"], "additionalProperties": False}
    given = {**GIVEN, "max_tokens": 60, "thinking": {"type": "disabled"}}
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = asked(client, stream, **given, output_config=config)
    jsonschema.validate(json.loads(message.content[-1].text), schema)


@STREAM_OR_NOT
def test_thinking_ends_at_its_budget(client, stream) -> None:
    """A model at random does not stop by itself; behind its budget the answer is bound."""
    schema = {**TOOLS[0]["input_schema"], "additionalProperties": False}
    message = asked(
        client,
        stream,
        **{**GIVEN, "max_tokens": 120, "messages": [*HELLO, THINKS]},
        thinking={"type": "enabled", "budget_tokens": 8},
        tools=TOOLS,
        tool_choice={"type": "any"},
    )
    assert message.content[0].type == "thinking"
    assert message.usage.output_tokens_details.thinking_tokens <= 8 + 8  # the end tag too
    calls = [block for block in message.content if block.type == "tool_use"]
    assert calls
    for call in calls:
        jsonschema.validate(call.input, schema)


THINKS = {"role": "assistant", "content": "<think>"}


@rs.function
def talk(s):
    s += rs.system("be brief")
    s += rs.user("the quick brown fox")
    s += rs.assistant("A " + rs.gen("x", max_tokens=6, temperature=0))
    s += rs.user("and")
    s += rs.assistant(rs.gen("y", max_tokens=6, temperature=0))


def test_a_program_is_the_same_on_the_backend_for_that_api(server) -> None:
    ours, theirs = rs.RuntimeEndpoint(server.url), rs.Anthropic("tiny", base_url=server.url)
    try:
        there, streamed = (talk.run(backend=theirs, stream=stream) for stream in (False, True))
        for name in ("x", "y"):
            assert streamed[name] == there[name]
            assert there.get_meta_info(name)["completion_tokens"] == 6
        assert there["x"] == talk.run(backend=ours)["x"]
    finally:
        theirs.close()
        ours.close()


def test_a_client_that_leaves_frees_its_pages(server) -> None:
    body = {**GIVEN, "max_tokens": 8000, "stream": True, "rid": "long"}

    async def leave() -> None:
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=60) as http,
            http.stream("POST", "/v1/messages", json=body) as response,
        ):
            async for line in response.aiter_lines():
                if "content_block_delta" in line:
                    return

    asyncio.run(leave())
    wait_until(lambda: server.info()["running"] == 0, 5.0)
    no_leak(server)
