"""LangChain's OpenAI classes against a real socket, streamed and not."""

from __future__ import annotations

import asyncio
import base64
import functools
import operator

import numpy as np
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from radixserve.api.app import create_app
from radixserve.config.schema import Config, HttpConfig
from tests.api.listening import listening
from tests.api.scripted import MODEL, ScriptedGateway

SAID = "Paris is the capital 🦙 of France."
MESSAGES = [SystemMessage("be brief"), HumanMessage("hello"), AIMessage("hi"), HumanMessage("so?")]


class City(BaseModel):
    name: str
    people: int


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, (SAID,))


@pytest.fixture
def options(gateway):
    with listening(create_app(gateway, Config(http=HttpConfig(api_key=("key",))))) as url:
        yield {"model": MODEL, "base_url": f"{url}/v1", "api_key": "key", "max_retries": 0}


def test_chat(options) -> None:
    chat = ChatOpenAI(**options, temperature=0, max_tokens=64, seed=7)
    reply = chat.invoke(MESSAGES)
    assert reply.content == SAID
    assert reply.response_metadata["finish_reason"] == "stop"
    assert reply.usage_metadata["input_tokens"] > 0
    assert reply.usage_metadata["input_token_details"]["cache_read"] == 0
    again = chat.invoke(MESSAGES)
    assert again.usage_metadata["input_token_details"]["cache_read"] > 0


def test_chat_streamed(options) -> None:
    chunks = list(ChatOpenAI(**options, stream_usage=True).stream(MESSAGES))
    assert "".join(chunk.content for chunk in chunks) == SAID
    assert len(chunks) > 3
    whole = sum(chunks[1:], chunks[0])
    assert whole.usage_metadata["output_tokens"] > 0
    assert whole.response_metadata["finish_reason"] == "stop"


def test_chat_on_an_event_loop(options) -> None:
    async def ask() -> tuple[str, str]:
        chat = ChatOpenAI(**options)
        replies, *_ = await asyncio.gather(chat.ainvoke(MESSAGES), chat.ainvoke("hello"))
        streamed = [chunk.content async for chunk in chat.astream(MESSAGES)]
        return replies.content, "".join(streamed)

    assert asyncio.run(ask()) == (SAID, SAID)


def test_a_chain_and_a_batch(options) -> None:
    chain = ChatPromptTemplate.from_template("Where is {place}?") | ChatOpenAI(**options)
    replies = chain.batch([{"place": "Paris"}, {"place": "Rome"}])
    assert [reply.content for reply in replies] == [SAID, SAID]


def test_logprobs_and_stops(options) -> None:
    chat = ChatOpenAI(**options, logprobs=True, top_logprobs=2, stop=["capital"])
    reply = chat.invoke(MESSAGES)
    assert reply.content == "Paris is the "
    entries = reply.response_metadata["logprobs"]["content"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_structured_output(options, gateway) -> None:
    gateway.outputs = ('{"name": "Paris", "people": 2}',)
    chat = ChatOpenAI(**options).with_structured_output(City, method="json_schema")
    assert chat.invoke("hello") == City(name="Paris", people=2)
    assert gateway.requests[-1].constraint.kind == "json_schema"
    chat = ChatOpenAI(**options).with_structured_output(City, method="json_mode")
    assert chat.invoke("hello, in json") == City(name="Paris", people=2)
    assert gateway.requests[-1].constraint.kind == "json_object"


def test_tools(options, gateway) -> None:
    gateway.outputs = (
        '<tool_call>\n{"name": "City", "arguments": {"name": "Paris", "people": 2}}\n</tool_call>',
    )
    chat = ChatOpenAI(**options).bind_tools([City], tool_choice="required")
    for reply in (chat.invoke("hello"), sum_of(chat.stream("hello"))):
        [call] = reply.tool_calls
        assert (call["name"], call["args"]) == ("City", {"name": "Paris", "people": 2})
    assert gateway.requests[-1].constraint.kind == "structural_tag"
    chat = ChatOpenAI(**options).with_structured_output(City, method="function_calling")
    assert chat.invoke("hello") == City(name="Paris", people=2)


def sum_of(chunks):
    return functools.reduce(operator.add, chunks)


def test_completions(options) -> None:
    complete = OpenAI(**options, max_tokens=64, temperature=0)
    assert complete.invoke("hello") == SAID
    assert "".join(complete.stream("hello")) == SAID
    assert complete.generate(["a", "b"]).generations[1][0].text == SAID


def test_embeddings(options, gateway) -> None:
    embed = OpenAIEmbeddings(**options, check_embedding_ctx_length=False)
    first, second = embed.embed_documents(["hello", "hello there"])
    assert len(first) == len(second) == 3
    assert first != second
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-6)
    assert embed.embed_query("hello") == pytest.approx(first)


def test_embeddings_of_the_official_client(options) -> None:
    options = {name: options[name] for name in ("base_url", "api_key", "max_retries")}
    with openai.OpenAI(**options) as client:
        as_floats = client.embeddings.create(model=MODEL, input=["hello"], encoding_format="float")
        packed = client.embeddings.create(model=MODEL, input="hello", encoding_format="base64")
        plain = client.embeddings.create(model=MODEL, input="hello", dimensions=2)
    vector = np.frombuffer(base64.b64decode(packed.data[0].embedding), "<f4")
    assert vector.tolist() == pytest.approx(as_floats.data[0].embedding)
    assert len(plain.data[0].embedding) == 2
    assert plain.usage.total_tokens > 0
