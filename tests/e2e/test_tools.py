"""Tools on a served SmolLM2: whatever it samples, arguments satisfy their schemas."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from openai.types.responses import Response

from tests.e2e.test_serve import Server, no_leak, post

pytestmark = pytest.mark.model

EACH = 8  # outputs of one request


def tool(name: str, description: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties), **more}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    tool(
        "calculate",
        "work out a sum",
        {
            "operator": {"enum": ["+", "-", "*", "/"]},
            "numbers": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3},
        },
    ),
    tool(
        "look_up",
        "find what is known of a place",
        {
            "place": {"type": "string", "maxLength": 12, "pattern": "^[A-Z]"},
            "about": {"anyOf": [{"const": "people"}, {"type": "null"}]},
        },
    ),
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS = {each["function"]["name"]: each["function"].get("parameters") for each in TOOLS}
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 16}},
    "required": ["answer"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER}}


def called(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{name}", "type": "function", "function": function}


ASKED = [{"role": "user", "content": "What is 3 times 5?"}]
# After some calls a small model makes another one.
HISTORY = [
    message
    for place, people in [("Paris", 2), ("Rome", 3), ("Oslo", 1)]
    for message in (
        {"role": "user", "content": f"How many people live in {place}?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [called("look_up", place=place, about="people")],
        },
        {"role": "tool", "tool_call_id": "call_look_up", "content": f"{people} million"},
    )
] + [{"role": "user", "content": "How many people live in Berlin?"}]
NAMED = {"type": "function", "function": {"name": "calculate"}}

VARIANTS: dict[str, dict[str, Any]] = {
    "required": {"messages": ASKED, "tool_choice": "required"},
    "required, one": {
        "messages": ASKED,
        "tool_choice": "required",
        "parallel_tool_calls": False,
    },
    "required, format": {
        "messages": ASKED,
        "tool_choice": "required",
        "response_format": FORMAT,
    },
    "named": {"messages": ASKED, "tool_choice": NAMED},
    "auto": {"messages": HISTORY},
    "auto, one": {"messages": HISTORY, "parallel_tool_calls": False},
    "auto, format": {"messages": HISTORY, "response_format": FORMAT},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    running = Server(pathlib.Path("smollm2"), tmp_path_factory.mktemp("serve") / "log")
    try:
        yield running.wait_ready()
        no_leak(running)
    finally:
        running.stop()


def choices(server: Server, seed: int, **given: Any) -> list[dict[str, Any]]:
    body = {"tools": TOOLS, "temperature": 1.5, "max_tokens": 64, "n": EACH, "seed": seed, **given}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=280)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"]


def check(choice: dict[str, Any], variant: dict[str, Any]) -> int:
    """How many calls the choice has, all of them as they should be."""
    message = choice["message"]
    calls = message.get("tool_calls", [])
    for call in calls:
        function = call["function"]
        arguments = json.loads(function["arguments"])
        schema = SCHEMAS[function["name"]]
        assert isinstance(arguments, dict)
        if schema is None:
            assert arguments == {}
        else:
            jsonschema.validate(arguments, schema, jsonschema.Draft202012Validator)
    assert len({call["id"] for call in calls}) == len(calls)
    if choice["finish_reason"] != "length":
        assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    if variant.get("tool_choice") is not None:
        assert calls
        assert message["content"] is None
    if variant.get("tool_choice") == NAMED:
        assert [call["function"]["name"] for call in calls] == ["calculate"]
    if variant.get("parallel_tool_calls") is False:
        assert len(calls) <= 1
    if "response_format" in variant and not calls:
        jsonschema.validate(json.loads(message["content"]), ANSWER)
    assert "<tool_call>" not in (message["content"] or "")
    return len(calls)


def count_calls(server: Server, rounds: int) -> Counter[str]:
    jobs = [(name, seed) for seed in range(rounds) for name in VARIANTS]
    ids = post(server, "/tokenize", prompt="<tool_call>").json()["tokens"]
    nudge = {"logit_bias": {str(token): 4 for token in ids}}  # so hot a model seldom calls else

    def one(job: tuple[str, int]) -> tuple[str, list[dict[str, Any]]]:
        name, seed = job
        given = VARIANTS[name] | (nudge if name.startswith("auto") else {})
        return name, choices(server, seed, **given)

    found: Counter[str] = Counter()
    with ThreadPoolExecutor(len(VARIANTS)) as pool:
        for name, sampled in pool.map(one, jobs):
            found[name] += sum(check(choice, VARIANTS[name]) for choice in sampled)
    assert set(found) == set(VARIANTS)
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_the_agent_loop_of_the_examples(server: Server, stream: bool) -> None:
    command = [sys.executable, "examples/agent_loop.py", "--url", f"{server.url}/v1"]
    ran = subprocess.run(
        [*command, *(["--stream"] if stream else [])],
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    calls, _, _ = ran.stdout.partition("answer: ")
    assert calls.startswith(("look_up(", "calculate(")), ran.stdout


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_loop_over_responses(server: Server, stream: bool) -> None:
    flat = [{"type": "function", **each["function"]} for each in TOOLS]
    given: dict[str, Any] = {"model": "tiny", "max_output_tokens": 48, "tools": flat}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        def reply(**more: Any) -> Response:
            made = client.responses.create(**given, **more, stream=stream)
            return list(made)[-1].response if stream else made

        first = reply(input="What is 3 times 5?", tool_choice="required", parallel_tool_calls=False)
        [call] = first.output
        schema = SCHEMAS[call.name] or {"maxProperties": 0}
        jsonschema.validate(json.loads(call.arguments), schema, jsonschema.Draft202012Validator)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "15"}
        last = reply(input=[result], previous_response_id=first.id, tool_choice="none")
        assert last.output_text
        assert [item.type for item in last.output] == ["message"]
        computed = first.usage.input_tokens
        assert last.usage.input_tokens_details.cached_tokens >= computed - 1


def test_a_call_cut_short_is_whole(server: Server) -> None:
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 2}
    long = [tool("add", "add numbers", {"numbers": numbers})]
    given = {"messages": ASKED, "tools": long, "tool_choice": "required", "max_tokens": 40}
    [choice] = choices(server, 1, **given, n=1)
    [call, *_] = choice["message"]["tool_calls"]
    assert len(json.loads(call["function"]["arguments"])["numbers"]) >= 2
    if choice["finish_reason"] == "length":
        assert choice["truncated"] is True


def test_hot_calls_are_valid(server: Server) -> None:
    found = count_calls(server, 1)
    assert found.total() >= 50
    assert min(found.values()) >= 2, found


@pytest.mark.slow
def test_many_hot_calls_are_valid(server: Server) -> None:
    found = count_calls(server, 9)
    assert found.total() >= 500
    assert min(found.values()) >= 16, found
