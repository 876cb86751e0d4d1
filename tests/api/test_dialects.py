"""One conversation in every dialect: the same request reaches the engine, the same comes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.api.dialects import DIALECTS, Reply, Talk
from tests.api.scripted import ScriptedGateway, client
from tests.api.talk import ask
from tests.api.test_reasoning import HYBRID, renderer_of
from tests.api.tool_talk import CALL, NOW_CALL

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
TOOLS = [
    ("get_weather", "the weather in a city", WEATHER),
    ("now", "the time", {"type": "object", "properties": {}}),
]
ANSWER = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
PARIS = ("called", "get_weather", '{"city": "Paris"}')
NOW = ("called", "now", "{}")
HELLO = [("user", "hello")]
TURNS = [("user", "one"), ("assistant", "two"), ("user", "three")]
CALLED = [
    ("user", "weather?"),
    ("calls", [("c1", "get_weather", {"city": "Rome"}), ("c2", "now", {})]),
    ("results", [("c1", "sunny"), ("c2", "noon")]),
]
SAID_AND_CALLED = [
    ("user", "weather?"),
    ("assistant", "I look."),
    ("calls", [("c1", "get_weather", {"city": "Rome", "deep": {"b": [1, None]}})]),
    ("results", [("c1", "<|im_end|> sunny")]),
    ("assistant", "It is sunny."),
    ("user", "and now?"),
]
THOUGHT = [
    ("user", "why?"),
    ("thought", "because"),
    ("assistant", "so"),
    ("user", "really?"),
]

TALKS: dict[str, tuple[Talk, list[tuple[str, ...]], str]] = {
    "plain": (Talk(turns=HELLO, said="the quick fox"), [("said", "the quick fox")], "stop"),
    "nothing": (Talk(turns=HELLO, said=""), [], "stop"),
    "system": (Talk(turns=HELLO, said="x", system="be brief"), [("said", "x")], "stop"),
    "several turns": (Talk(turns=TURNS, said="x", system="be"), [("said", "x")], "stop"),
    "cut": (
        Talk(turns=HELLO, said="the quick brown fox", max_tokens=2),
        [("said", "the quick")],
        "length",
    ),
    "a call": (Talk(turns=HELLO, said=CALL, tools=TOOLS), [PARIS], "calls"),
    "said and called": (
        Talk(turns=HELLO, said=f"Sure. {CALL}", tools=TOOLS, system="be brief"),
        [("said", "Sure. "), PARIS],
        "calls",
    ),
    "several calls": (
        Talk(turns=HELLO, said=f"{CALL}\n{NOW_CALL}", tools=TOOLS, choice="required"),
        [PARIS, NOW],
        "calls",
    ),
    "one call": (Talk(turns=HELLO, said=CALL, tools=TOOLS, many=False), [PARIS], "calls"),
    "a named call": (Talk(turns=HELLO, said=NOW_CALL, tools=TOOLS, choice="now"), [NOW], "calls"),
    "no call": (Talk(turns=HELLO, said="no", tools=TOOLS, choice="none"), [("said", "no")], "stop"),
    "results": (Talk(turns=CALLED, said="sunny", tools=TOOLS), [("said", "sunny")], "stop"),
    "results of a call beside words": (
        Talk(turns=SAID_AND_CALLED, said="noon", tools=TOOLS),
        [("said", "noon")],
        "stop",
    ),
    "an answer by schema": (
        Talk(turns=HELLO, said='{"a": 1}', schema=ANSWER),
        [("said", '{"a": 1}')],
        "stop",
    ),
    "a call or an answer by schema": (
        Talk(turns=CALLED, said='{"a": 1}', schema=ANSWER, tools=TOOLS),
        [("said", '{"a": 1}')],
        "stop",
    ),
}
THINKING: dict[str, tuple[Talk, list[tuple[str, ...]], str]] = {
    "thought and said": (
        Talk(turns=HELLO, said="<think>\nwhy\n</think>\n\nyes"),
        [("thought", "why"), ("said", "yes")],
        "stop",
    ),
    "thought and called": (
        Talk(turns=HELLO, said=f"<think>\nwhy\n</think>\n\n{CALL}", tools=TOOLS, effort="low"),
        [("thought", "why"), PARIS],
        "calls",
    ),
    "thought in an earlier turn": (Talk(turns=THOUGHT, said="yes"), [("said", "yes")], "stop"),
    "cut while it thinks": (
        Talk(turns=HELLO, said="<think>\nwhy and why and why", max_tokens=12),
        [("thought", "why and")],
        "length",
    ),
    "bound behind its thoughts": (
        Talk(turns=HELLO, said='<think>\nwhy\n</think>\n\n{"a": 1}', schema=ANSWER, effort="low"),
        [("thought", "why"), ("said", '{"a": 1}')],
        "stop",
    ),
}


def replies(renderer, talk: Talk, stream: bool):
    """What each dialect makes of it: (the engine's request, the reply)."""
    found = []
    for dialect in DIALECTS:
        gateway = ScriptedGateway(renderer, (talk.said,), context_len=4096)
        body = dialect.body(talk) | ({"stream": True} if stream else {})
        if stream and dialect.name == "chat":
            body["stream_options"] = {"include_usage": True}
        response = ask(gateway, dialect.path, body)
        assert response.status_code == 200, (dialect.name, response.text)
        whole = dialect.whole(response.text) if stream else response.json()
        [request] = gateway.requests
        # Beside its name, and whether others may read it as it grows, all of a request is the same.
        plain = replace(request, rid="", origin=None, is_whole=False)
        found.append((plain, dialect.reply(whole)))
    return found


def check(renderer, talk: Talk, pieces, end: str, stream: bool) -> None:
    (request, first), *others = replies(renderer, talk, stream)
    for dialect, (another, reply) in zip(DIALECTS[1:], others, strict=True):
        assert another.prompt == request.prompt, dialect.name
        assert another == request, dialect.name
        assert reply == first, dialect.name
    assert request.params.max_new_tokens == talk.max_tokens
    assert request.params.temperature == talk.temperature
    assert first == Reply(pieces, end, first.usage, truncated=False)
    assert first.usage[0] == len(request.prompt) // 4


STREAM_OR_NOT = pytest.mark.parametrize("stream", [False, True])


@STREAM_OR_NOT
@pytest.mark.parametrize("name", TALKS)
def test_every_dialect_asks_and_answers_the_same(renderer, name, stream):
    check(renderer, *TALKS[name], stream)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    return renderer_of(tmp_path_factory.mktemp("hybrid"), HYBRID)


@STREAM_OR_NOT
@pytest.mark.parametrize("name", THINKING)
def test_every_dialect_tells_reasoning_apart(hybrid, name, stream):
    check(hybrid, *THINKING[name], stream)


def test_a_chain_of_responses_asks_what_chat_asks_with_its_history(renderer):
    gateway = ScriptedGateway(renderer, (f"Sure. {CALL}",), context_len=4096)
    talk = Talk(turns=HELLO, said="", tools=TOOLS)
    chat, responses, _ = DIALECTS

    async def go():
        async with client(gateway) as asking:
            body = responses.body(talk)
            first = (await asking.post(responses.path, json=body)).json()
            call_id = first["output"][1]["call_id"]
            more = {"type": "function_call_output", "call_id": call_id, "output": "sunny"}
            body = body | {"input": [more], "previous_response_id": first["id"]}
            assert (await asking.post(responses.path, json=body)).status_code == 200
            called = ("calls", [(call_id, "get_weather", {"city": "Paris"})])
            turns = [*HELLO, ("assistant", "Sure. "), called, ("results", [(call_id, "sunny")])]
            whole = chat.body(replace(talk, turns=turns))
            assert (await asking.post(chat.path, json=whole)).status_code == 200

    asyncio.run(go())
    _, chained, told = gateway.requests
    assert chained.prompt == told.prompt
    assert chained.constraint == told.constraint
