"""More of the official client: on an event loop, structured outputs, raw responses, our extras."""

from __future__ import annotations

import asyncio
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from radixserve.api.app import create_app
from radixserve.config.schema import Config, HttpConfig
from tests.api.listening import listening
from tests.api.scripted import MODEL, ScriptedGateway

SAID = "Paris is the capital 🦙 of France."
MESSAGES = [
    {"role": "developer", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    {"role": "assistant", "content": None, "refusal": "no"},
    {"role": "user", "content": "so?"},
]


class City(BaseModel):
    name: str
    size: Literal["small", "large"]


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, (SAID,))


@pytest.fixture
def options(gateway):
    with listening(create_app(gateway, Config(http=HttpConfig(api_key=("key",))))) as url:
        yield {"base_url": f"{url}/v1", "api_key": "key", "max_retries": 0}


def test_many_at_once_streamed_and_not(options) -> None:
    async def one(client: openai.AsyncOpenAI, stream: bool) -> str:
        given = {"model": MODEL, "messages": MESSAGES}
        if not stream:
            reply = await client.chat.completions.create(**given)
            return reply.choices[0].message.content or ""
        parts = []
        async with await client.chat.completions.create(**given, stream=True) as chunks:
            async for chunk in chunks:
                parts += [choice.delta.content or "" for choice in chunk.choices]
        return "".join(parts)

    async def go() -> list[str]:
        async with openai.AsyncOpenAI(**options) as client:
            return await asyncio.gather(*(one(client, i % 2 == 0) for i in range(16)))

    assert asyncio.run(go()) == [SAID] * 16


def test_structured_outputs(options, gateway) -> None:
    gateway.outputs = ('{"name": "Paris", "size": "large"}',)
    with openai.OpenAI(**options) as client:
        reply = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=City)
        assert reply.choices[0].message.parsed == City(name="Paris", size="large")
        with client.chat.completions.stream(
            model=MODEL, messages=MESSAGES, response_format=City
        ) as stream:
            final = stream.get_final_completion()
    assert final.choices[0].message.parsed == City(name="Paris", size="large")
    assert gateway.requests[-1].constraint.kind == "json_schema"


def test_every_parameter_that_means_something(options, gateway) -> None:
    with openai.OpenAI(**options) as client:
        reply = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, n=2, seed=3, temperature=0.5, top_p=0.9,
            max_completion_tokens=9, stop=["zz"], logit_bias={"7": -5}, logprobs=True,
            top_logprobs=3, frequency_penalty=0.1, presence_penalty=0.2, user="me",
            metadata={"a": "b"}, store=False, service_tier="auto", parallel_tool_calls=True,
            tool_choice="none", tools=[], response_format={"type": "text"},
            extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "cache_salt": "s",
                        "explain_cache": True, "priority": 1},
        )  # fmt: skip
    assert len(reply.choices) == 2
    assert len(reply.choices[0].logprobs.content[0].top_logprobs) == 3
    assert reply.model_extra["cache"][0]["reason"] == "evicted"
    params = gateway.requests[-1].params
    assert (params.seed, params.top_k, params.max_new_tokens) == (3, 5, 9)
    assert params.logit_bias == {7: -5.0}


def test_raw_responses_and_timeouts(options) -> None:
    with openai.OpenAI(**options) as client:
        raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES)
        assert raw.headers["content-type"] == "application/json"
        assert raw.parse().choices[0].message.content == SAID
        with client.chat.completions.with_streaming_response.create(
            model=MODEL, messages=MESSAGES, stream=True
        ) as response:
            lines = [line for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"


def test_completions_with_everything(options) -> None:
    with openai.OpenAI(**options) as client:
        reply = client.completions.create(
            model=MODEL, prompt=[[300, 301], [302]], echo=True, logprobs=2, n=2, best_of=2,
            stop=["capital"], suffix="", seed=1,
        )  # fmt: skip
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert all(choice.finish_reason == "stop" for choice in reply.choices)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"functions": [{"name": "f", "parameters": {}}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"extra_body": {"colour": 1}}, "colour"),
    ],
)
def test_what_is_not_there_is_refused_by_name(options, given, param) -> None:
    with openai.OpenAI(**options) as client, pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, **given)
    assert refused.value.param == param
