"""Agent loops of the official client against a scripted model, streamed and not."""

from __future__ import annotations

import importlib.util
import json
import types

import openai
import pytest
from pydantic import BaseModel

from radixserve.api.app import create_app
from radixserve.config.schema import Config
from tests.api.listening import listening
from tests.api.scripted import MODEL
from tests.api.talk import ask
from tests.api.tool_talk import Turns, written

STREAM_OR_NOT = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
def gateway(renderer):
    return Turns(renderer, context_len=8192)


@pytest.fixture
def client(gateway):
    with (
        listening(create_app(gateway, Config())) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as each,
    ):
        yield each


@pytest.fixture
def example() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("agent_loop", "examples/agent_loop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@STREAM_OR_NOT
def test_the_agent_loop_of_the_examples(example, client, gateway, capsys, stream):
    gateway.turns = [
        written("look_up", city="Rome"),
        written("look_up", city="Oslo"),
        "I add them. " + written("calculate", operation="add", left=2_800_000, right=700_000),
        "3500000 people",
    ]
    assert example.answer(client, MODEL, "?", stream=stream) == "3500000 people"
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" = ")[2] for line in lines] == ["2800000", "700000", "3500000"]
    kinds = [json.loads(r.constraint.value)["format"]["type"] for r in gateway.requests]
    assert kinds == ["tag", "triggered_tags", "triggered_tags", "any_text"]
    ids = memoryview(gateway.requests[-1].prompt).cast("i").tolist()
    prompt = gateway.renderer.tokenizer.decode(ids, skip_special=False)
    assert "<result>\n2800000\n</result>" in prompt
    assert "I add them. \n<tool_call>" in prompt
    assert '\\"' not in prompt


@STREAM_OR_NOT
def test_several_calls_in_one_turn(client, gateway, stream):
    gateway.turns = [f"{written('f', a=1)}\n{written('f', a=2)}"]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    given = {"model": MODEL, "tools": tools, "max_tokens": 300}
    messages = [{"role": "user", "content": "x"}]
    if stream:
        with client.chat.completions.stream(messages=messages, **given) as events:
            kinds = [event.type for event in events]
            message = events.get_final_completion().choices[0].message
        assert kinds.count("tool_calls.function.arguments.done") == 2
        assert "tool_calls.function.arguments.delta" in kinds
    else:
        message = client.chat.completions.create(messages=messages, **given).choices[0].message
    assert message.content is None
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [
        {"a": 1},
        {"a": 2},
    ]
    messages.append(message)
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in message.tool_calls
    ]
    gateway.turns = ["done"]
    reply = client.chat.completions.create(messages=messages, **given)
    assert reply.choices[0].message.content == "done"


class Weather(BaseModel):
    """the weather in a city"""

    city: str


@STREAM_OR_NOT
def test_strict_tools_are_parsed_and_taken_back(client, gateway, stream):
    gateway.turns = [written("Weather", city="Oslo"), "cold"]
    given = {"model": MODEL, "tools": [openai.pydantic_function_tool(Weather)], "max_tokens": 300}
    messages = [{"role": "user", "content": "x"}]
    if stream:
        with client.chat.completions.stream(messages=messages, **given) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.parse(messages=messages, **given).choices[0].message
    [call] = message.tool_calls
    assert call.function.parsed_arguments == Weather(city="Oslo")
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "-3"}]
    reply = client.chat.completions.create(messages=messages, **given)
    assert reply.choices[0].message.content == "cold"


def test_tokenize_shows_history_as_chat_does(client, gateway):
    gateway.turns = ["x"]
    function = {"name": "f", "arguments": "{}"}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    ]
    client.chat.completions.create(model=MODEL, messages=messages)
    ids = memoryview(gateway.requests[-1].prompt).cast("i").tolist()
    assert ask(gateway, "/tokenize", {"messages": messages}).json()["tokens"] == ids
