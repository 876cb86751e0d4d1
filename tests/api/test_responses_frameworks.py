"""Agents of pydantic-ai and langgraph over /v1/responses: tools and structured answers."""

from __future__ import annotations

import asyncio

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from radixserve.api.app import create_app
from radixserve.config.schema import Config
from tests.api.listening import listening
from tests.api.scripted import MODEL
from tests.api.test_agents import ASKED, SAID, TURNS, Total, people_of, returned
from tests.api.tool_talk import Turns, prompt_of, written

STREAM_OR_NOT = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
def gateway(renderer):
    gateway = Turns(renderer, context_len=8192)
    gateway.turns = TURNS
    return gateway


@pytest.fixture
def url(gateway):
    with listening(create_app(gateway, Config())) as each:
        yield f"{each}/v1"


def ran(url, stream, **options):
    """(the output, all messages) of an agent of pydantic-ai."""

    async def go():
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            model = OpenAIResponsesModel(MODEL, provider=OpenAIProvider(openai_client=client))
            agent = Agent(model, tools=[people_of], instructions="Look the numbers up.", **options)
            if not stream:
                result = await agent.run(ASKED)
                return result.output, result.all_messages()
            async with agent.run_stream(ASKED) as running:
                return await running.get_output(), running.all_messages()

    return asyncio.run(go())


@STREAM_OR_NOT
def test_pydantic_ai(url, gateway, stream) -> None:
    said, messages = ran(url, stream)
    assert said == SAID
    assert returned(messages) == [2_800_000, 700_000, 2_800_000]
    assert prompt_of(gateway).count("<result>") == 3
    assert len(gateway.requests) == 3


@STREAM_OR_NOT
def test_pydantic_ai_with_a_structured_answer(url, gateway, stream) -> None:
    gateway.turns = [TURNS[0], written("final_result", people=2_800_000)]
    assert ran(url, stream, output_type=Total)[0] == Total(people=2_800_000)
    assert len(gateway.requests) == 2


def react(url: str, **options: object):
    chat = ChatOpenAI(
        model=MODEL, base_url=url, api_key="none", max_retries=0, use_responses_api=True
    )
    return create_react_agent(chat, [tool(people_of)], prompt="Look the numbers up.", **options)


@STREAM_OR_NOT
@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
def test_langgraph(url, gateway, stream) -> None:
    agent = react(url)
    given = {"messages": [HumanMessage(ASKED)]}
    if stream:
        pieces = [piece for piece, _ in agent.stream(given, stream_mode="messages")]
        said = "".join(each.text for each in pieces if isinstance(each, AIMessage))
    else:
        pieces = agent.invoke(given)["messages"]
        said = pieces[-1].text
    assert said.endswith(SAID)
    found = [each.content for each in pieces if isinstance(each, ToolMessage)]
    assert sorted(found) == ["2800000", "2800000", "700000"]
    assert len(gateway.requests) == 3


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_langgraph_with_a_structured_answer(url, gateway) -> None:
    gateway.turns = [*TURNS, '{"people": 3500000}']
    given = {"messages": [HumanMessage(ASKED)]}
    found = react(url, response_format=Total).invoke(given)["structured_response"]
    assert found == Total(people=3_500_000)
    assert gateway.requests[-1].constraint.kind == "json_schema"
