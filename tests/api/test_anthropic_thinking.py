"""Thinking in the Anthropic dialect: blocks, their deltas, what switches and bounds it."""

from __future__ import annotations

import anthropic
import pytest
from anthropic.types import Message

from radixserve.api.app import create_app
from radixserve.config.schema import Config
from tests.api.anthropic_talk import (
    HELLO,
    TOOLS,
    answered,
    counted,
    message_of,
    refused,
    streamed,
    timeless,
)
from tests.api.listening import listening
from tests.api.scripted import MODEL, ScriptedGateway
from tests.api.test_reasoning import HYBRID, OPENING, renderer_of
from tests.api.tool_talk import CALL, gateway_of, prompt_of

ENABLED = {"type": "enabled", "budget_tokens": 64}
OFF = {"type": "disabled"}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    return renderer_of(tmp_path_factory.mktemp("hybrid"), HYBRID)


@pytest.fixture(scope="module")
def opening(tmp_path_factory):
    tags = ("<think>", "</think>")
    return renderer_of(tmp_path_factory.mktemp("opening"), OPENING, added_tokens=tags)


def in_short(message):
    return [
        block.get("thinking", block.get("text", block.get("name"))) for block in message["content"]
    ]


@pytest.mark.parametrize(
    ("template", "said", "found"),
    [
        ("hybrid", "<think>\nwhy\n</think>\n\nyes", ["thinking:why", "text:yes"]),
        ("hybrid", "yes", ["text:yes"]),
        ("hybrid", "<think>\nwhy", ["thinking:why"]),
        ("opening", "why\n</think>\n\nyes", ["thinking:why", "text:yes"]),
        (
            "opening",
            f"why\n</think>\n\nSo: {CALL}",
            ["thinking:why", "text:So: ", "tool_use:get_weather"],
        ),
        ("opening", f"{CALL}</think>{CALL}", [f"thinking:{CALL}", "tool_use:get_weather"]),
    ],
)
def test_thoughts_are_blocks_before_all_else(request, template, said, found):
    gateway = gateway_of(request.getfixturevalue(template), said)
    whole = answered(gateway, tools=TOOLS)
    Message.model_validate(whole, strict=True)
    kinds = [block["type"] for block in whole["content"]]
    assert [f"{kind}:{words}" for kind, words in zip(kinds, in_short(whole))] == found
    assert timeless(message_of(streamed(gateway, tools=TOOLS))) == timeless(whole)
    signatures = [block["signature"] for block in whole["content"] if "signature" in block]
    assert all(signatures)
    assert len(signatures) == kinds.count("thinking")


def test_a_signature_comes_last_of_its_block(opening):
    gateway = gateway_of(opening, "why and why</think>yes")
    events = [event for event in streamed(gateway) if event.get("index") == 0]
    kinds = [event.get("delta", {}).get("type") for event in events]
    assert events[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert kinds[-2:] == ["signature_delta", None]
    assert set(kinds[1:-2]) == {"thinking_delta"}
    assert len(kinds) > 4


def test_display_omitted_leaves_the_text_out(opening):
    gateway = gateway_of(opening, "why</think>yes")
    shown = answered(gateway)
    thinking = {"type": "adaptive", "display": "omitted"}
    hidden = answered(gateway, thinking=thinking)
    assert in_short(shown) == ["why", "yes"]
    assert in_short(hidden) == ["", "yes"]
    assert hidden["content"][0]["signature"] == shown["content"][0]["signature"]
    events = streamed(gateway, thinking=thinking)
    assert message_of(events)["content"] == hidden["content"]
    assert not any(e.get("delta", {}).get("type") == "thinking_delta" for e in events)
    thinking["display"] = "summarized"
    assert in_short(answered(gateway, thinking=thinking)) == ["why", "yes"]


def test_thinking_is_switched_by_the_template(hybrid):
    gateway = gateway_of(hybrid, "yes")
    for thinking in (None, ENABLED, {"type": "adaptive"}, OFF):
        answered(gateway, thinking=thinking)
    unasked, enabled, adaptive, off = gateway.requests
    assert unasked.prompt == enabled.prompt == adaptive.prompt
    assert prompt_of(gateway).endswith("assistant\n<think>\n\n</think>\n\n")
    assert len(off.prompt) > len(enabled.prompt)
    assert [r.reasoning and r.reasoning.budget for r in (unasked, enabled, adaptive)] == [
        None,
        64,
        None,
    ]
    assert counted(gateway, thinking=OFF) == len(off.prompt) // 4
    assert counted(gateway, thinking=ENABLED) == len(enabled.prompt) // 4


@pytest.mark.parametrize(
    ("effort", "budget"), [("low", 1024), ("medium", 4096), ("high", None), ("max", None)]
)
def test_effort_is_of_the_reasoning(hybrid, effort, budget):
    gateway = gateway_of(hybrid, "yes")
    answered(gateway, output_config={"effort": effort})
    assert gateway.requests[-1].reasoning.budget == budget


@pytest.mark.parametrize(
    ("thinking", "named"),
    [
        ({}, "missing field thinking.type"),
        ({"type": "between_tools"}, "thinking.type"),
        ({"type": "enabled"}, "thinking of type enabled needs budget_tokens"),
        ({"type": "enabled", "budget_tokens": 0}, "thinking.budget_tokens must be at least 1"),
        ({"type": "enabled", "budget_tokens": 400}, "must be less than max_tokens"),
        ({"type": "enabled", "budget_tokens": "9"}, "thinking.budget_tokens"),
        ({"type": "adaptive", "budget_tokens": 5}, "adaptive has no use for budget_tokens"),
        ({"type": "disabled", "budget_tokens": 5}, "disabled has no use for budget_tokens"),
        ({"type": "disabled", "display": "omitted"}, "has no use for display"),
        ({**ENABLED, "display": "some"}, "thinking.display"),
        ({**ENABLED, "colour": 1}, "thinking.colour"),
    ],
)
def test_thinking_is_refused_naming_the_field(hybrid, thinking, named):
    gateway = gateway_of(hybrid, "yes")
    assert named in refused(gateway, thinking=thinking)
    assert gateway.requests == []


def test_a_model_that_does_not_reason(renderer):
    gateway = ScriptedGateway(renderer)
    assert refused(gateway, thinking=ENABLED).startswith("thinking.budget_tokens: ")
    assert refused(gateway, output_config={"effort": "low"}).startswith("output_config.effort: ")
    plain = answered(gateway)
    for fields in ({"thinking": OFF}, {"thinking": {"type": "adaptive"}}):
        assert timeless(answered(gateway, **fields)) == timeless(plain)
    assert answered(gateway, output_config={"effort": "high"})["content"] == plain["content"]


def test_the_official_client_takes_thoughts_and_sends_them_back(opening):
    gateway = gateway_of(opening, "why</think>yes")
    with (
        listening(create_app(gateway, Config())) as url,
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client,
    ):
        given = {"model": MODEL, "max_tokens": 99, "messages": HELLO, "thinking": ENABLED}
        whole = client.messages.create(**given)
        with client.messages.stream(**given) as stream:
            kinds = {event.type for event in stream}
            message = stream.get_final_message()
        assert {"thinking", "signature", "text"} <= kinds
        assert [block.type for block in message.content] == ["thinking", "text"]
        assert message.content[0] == whole.content[0]
        assert (message.content[0].thinking, message.content[1].text) == ("why", "yes")
        again = [*HELLO, {"role": "assistant", "content": message.content}, *HELLO]
        assert client.messages.create(**{**given, "messages": again}).content == whole.content
