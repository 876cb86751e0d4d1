"""Agents of openai-agents over /v1/responses, against a scripted model, to their end.

The package is none of the gate's: it needs other versions of what the gate pins. Where it is
installed, this runs.
"""

from __future__ import annotations

import asyncio

import openai
import pytest
from pydantic import BaseModel

from radixserve.api.app import create_app
from radixserve.config.schema import Config
from tests.api.listening import listening
from tests.api.response_talk import prompt_of
from tests.api.scripted import MODEL
from tests.api.tool_talk import Turns, written

agents = pytest.importorskip("agents", reason="openai-agents is not installed")

STREAM_OR_NOT = pytest.mark.parametrize("stream", [False, True])


@agents.function_tool
def get_weather(city: str) -> str:
    """the weather in a city"""
    return {"Rome": "30 degrees", "Oslo": "-3 degrees"}[city]


class Answer(BaseModel):
    warmest: str


@pytest.fixture
def gateway(renderer):
    return Turns(renderer, context_len=8192)


def run(gateway, turns, stream, texts, *, chained=False, **options):
    """The final outputs of a run for each of `texts`, one conversation."""
    agents.set_tracing_disabled(True)
    gateway.turns = turns

    async def go(url):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as each:
            model = agents.OpenAIResponsesModel(model=MODEL, openai_client=each)
            agent = agents.Agent(
                name="a", instructions="be brief", model=model, tools=[get_weather], **options
            )
            outputs, given, last = [], [], None
            for text in texts:
                question = {"role": "user", "content": text}
                items = [question] if chained else [*given, question]
                more = {"previous_response_id": last} if chained and last else {}
                if stream:
                    result = agents.Runner.run_streamed(agent, items, **more)
                    async for _ in result.stream_events():
                        pass
                else:
                    result = await agents.Runner.run(agent, items, **more)
                outputs.append(result.final_output)
                given, last = result.to_input_list(), result.last_response_id
            return outputs

    with listening(create_app(gateway, Config())) as url:
        return asyncio.run(go(url))


TURNS = [
    written("get_weather", city="Rome") + "\n" + written("get_weather", city="Oslo"),
    "Rome is warmer",
    "It was 30",
]


@STREAM_OR_NOT
@pytest.mark.parametrize("chained", [False, True])
def test_an_agent_calls_its_tools_and_goes_on(gateway, stream, chained):
    texts = ["Rome or Oslo?", "how warm?"]
    settings = agents.ModelSettings(parallel_tool_calls=True, temperature=0, store=chained)
    found = run(gateway, TURNS, stream, texts, chained=chained, model_settings=settings)
    assert found == TURNS[1:]
    prompt = prompt_of(gateway)
    places = [prompt.index(t) for t in ("be brief", "Rome or Oslo?", "30 degrees", "-3 degrees")]
    assert places == sorted(places)
    assert prompt.index("Rome is warmer") < prompt.index("how warm?")


@STREAM_OR_NOT
def test_an_agent_with_a_type_of_answer(gateway, stream):
    turns = [written("get_weather", city="Rome"), '{"warmest": "Rome"}']
    [found] = run(gateway, turns, stream, ["?"], output_type=Answer)
    assert found == Answer(warmest="Rome")
    assert gateway.requests[0].constraint is not None
