"""Agents of pydantic-ai and langgraph: tools and structured answers of a scripted model."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import openai
import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from radixserve.api.app import create_app
from radixserve.config.schema import Config
from tests.api.listening import listening
from tests.api.scripted import MODEL
from tests.api.tool_talk import Turns, prompt_of, written

STREAM_OR_NOT = pytest.mark.parametrize("stream", [False, True])
PEOPLE = {"Rome": 2_800_000, "Oslo": 700_000}
ASKED = "How many people live in Rome and Oslo together?"
SAID = "3500000 people 🦙 live there."
TURNS = [
    written("people_of", city="Rome"),
    written("people_of", city="Oslo") + written("people_of", city="Rome"),
    SAID,
]


class Total(BaseModel):
    people: int


def people_of(city: str) -> int:
    """How many people live in a city."""
    return PEOPLE[city]


@pytest.fixture
def gateway(renderer):
    gateway = Turns(renderer, context_len=8192)
    gateway.turns = TURNS
    return gateway


@pytest.fixture
def url(gateway):
    with listening(create_app(gateway, Config())) as each:
        yield f"{each}/v1"


@contextlib.asynccontextmanager
async def ai_model(url: str) -> AsyncIterator[OpenAIChatModel]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))


def returned(messages: list[ModelMessage]) -> list[object]:
    return [
        part.content
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


@STREAM_OR_NOT
def test_pydantic_ai(url, gateway, stream) -> None:
    async def go() -> tuple[str, list[ModelMessage]]:
        async with ai_model(url) as model:
            agent = Agent(model, tools=[people_of], instructions="Look the numbers up.")
            if not stream:
                ran = await agent.run(ASKED)
                return ran.output, ran.all_messages()
            async with agent.run_stream(ASKED) as running:
                texts = running.stream_text(delta=True, debounce_by=None)
                pieces = [piece async for piece in texts]
                assert len(pieces) > 3
                return "".join(pieces), running.all_messages()

    said, messages = asyncio.run(go())
    assert said == SAID
    assert returned(messages) == [2_800_000, 700_000, 2_800_000]
    assert prompt_of(gateway).count("<result>") == 3
    assert len(gateway.requests) == 3


@STREAM_OR_NOT
def test_pydantic_ai_with_a_structured_answer(url, gateway, stream) -> None:
    """Its way of asking for one is a tool of the output's schema, with tool_choice required."""
    gateway.turns = [TURNS[0], written("final_result", people=2_800_000)]

    async def go() -> Total:
        async with ai_model(url) as model:
            agent = Agent(model, tools=[people_of], output_type=Total)
            if not stream:
                return (await agent.run(ASKED)).output
            async with agent.run_stream(ASKED) as running:
                return await running.get_output()

    assert asyncio.run(go()) == Total(people=2_800_000)
    assert len(gateway.requests) == 2


def react(url: str, **options: object):
    chat = ChatOpenAI(model=MODEL, base_url=url, api_key="none", max_retries=0)
    return create_react_agent(chat, [tool(people_of)], prompt="Look the numbers up.", **options)


@STREAM_OR_NOT
@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
def test_langgraph(url, gateway, stream) -> None:
    agent = react(url)
    given = {"messages": [HumanMessage(ASKED)]}
    if stream:
        pieces = [piece for piece, _ in agent.stream(given, stream_mode="messages")]
        last = [each for each in pieces if isinstance(each, AIMessageChunk) and each.content]
        assert "".join(str(each.content) for each in last).endswith(SAID)
        found = [each.content for each in pieces if isinstance(each, ToolMessage)]
    else:
        messages = agent.invoke(given)["messages"]
        assert messages[-1].content == SAID
        found = [each.content for each in messages if isinstance(each, ToolMessage)]
    assert sorted(found) == ["2800000", "2800000", "700000"]
    assert len(gateway.requests) == 3


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
def test_langgraph_with_a_structured_answer(url, gateway) -> None:
    gateway.turns = [*TURNS, '{"people": 3500000}']
    given = {"messages": [HumanMessage(ASKED)]}
    assert react(url, response_format=Total).invoke(given)["structured_response"] == Total(
        people=3_500_000
    )
    constraint = gateway.requests[-1].constraint
    assert constraint is not None
    assert constraint.kind == "json_schema"
