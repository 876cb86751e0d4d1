"""Reasoning of a served model that is told how, through the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest

from tests.e2e.test_serve import Server, no_leak

pytestmark = pytest.mark.model

TOOL = {
    "type": "function",
    "function": {
        "name": "capital_of",
        "parameters": {"type": "object", "properties": {"country": {"enum": ["Japan", "Kenya"]}},
                       "required": ["country"]},
    },
}  # fmt: skip
FORMAT = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "schema": {
            "type": "object",
            "properties": {"in_europe": {"type": "boolean"}},
            "required": ["in_europe"],
            "additionalProperties": False,
        },
    },
}
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "Is Japan in Europe?"}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("thinks") / "log"
    running = Server("smollm2", log, "--reasoning-parser", "described")
    try:
        yield running.wait_ready()
        no_leak(running)
    finally:
        running.stop()


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")


def test_an_answer_behind_a_budget_of_reasoning(client):
    budget = {"thinking_token_budget": 8, "field_logprobs": True}
    reply = client.chat.completions.create(
        **ASKED, max_tokens=40, temperature=0.8, seed=1, response_format=FORMAT, extra_body=budget
    )
    choice = reply.choices[0]
    assert json.loads(choice.message.content).keys() == {"in_europe"}
    assert choice.message.reasoning_content
    assert 0 < reply.usage.completion_tokens_details.reasoning_tokens <= 8
    found = choice.field_logprobs["/in_europe"]["alternatives"]
    assert sum(each["probability"] for each in found) == pytest.approx(1, abs=1e-3)
    events = client.chat.completions.create(
        **ASKED, max_tokens=40, temperature=0.8, seed=1, response_format=FORMAT, stream=True,
        extra_body=budget,
    )  # fmt: skip
    deltas = [choice.delta for event in events for choice in event.choices]
    thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert "".join(thoughts) == choice.message.reasoning_content
    assert "".join(delta.content or "" for delta in deltas) == choice.message.content


def test_calls_behind_reasoning(client):
    for choice in ("required", "auto"):
        reply = client.chat.completions.create(
            **ASKED, max_tokens=60, temperature=1.2, seed=3, tools=[TOOL], tool_choice=choice,
            extra_body={"thinking_token_budget": 6},
        )  # fmt: skip
        message = reply.choices[0].message
        assert reply.usage.completion_tokens_details.reasoning_tokens <= 6
        assert message.reasoning_content
        for call in message.tool_calls or ():
            assert json.loads(call.function.arguments)["country"] in ("Japan", "Kenya")
        assert message.tool_calls or choice == "auto"


def test_the_switch(client):
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    reply = client.chat.completions.create(**ASKED, max_tokens=4, extra_body=off)
    assert not hasattr(reply.choices[0].message, "reasoning_content")
    assert reply.usage.completion_tokens_details.reasoning_tokens == 0
