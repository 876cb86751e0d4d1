"""Reasoning in responses over a scripted model: items of its own, and what goes in again."""

from __future__ import annotations

import pytest

from tests.api.response_talk import (
    RESPONSES,
    TOOLS,
    answered,
    body,
    many,
    prompt_of,
    rebuilt,
    shapes_of,
    streamed,
)
from tests.api.talk import ask, error_of
from tests.api.test_reasoning import HYBRID, gateway_of, renderer_of
from tests.api.tool_talk import CALL

# Shows the reasoning of earlier turns.
SHOWING = HYBRID.replace(
    "+ '\n' + message['content']",
    "+ '\n' + ('<think>\n' + message['reasoning_content'] + '\n</think>\n\n' "
    "if message['reasoning_content'] is defined else '') + message['content']",
)
LOGPROBS = {"include": ["message.output_text.logprobs"]}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    return renderer_of(tmp_path_factory.mktemp("hybrid"), HYBRID)


@pytest.mark.parametrize(
    ("said", "shapes"),
    [
        ("<think>\nwhy\n</think>\n\nyes", [("reasoning", "why"), ("message", "yes")]),
        ("yes", [("message", "yes")]),
        ("<think>\nwhy", [("reasoning", "why"), ("message", "")]),
        (
            f"<think>\nwhy\n</think>\n\n{CALL}",
            [("reasoning", "why"), ("call", "get_weather", '{"city": "Paris"}')],
        ),
        (f"<think>\n{CALL}\n</think>\n\nno", [("reasoning", CALL), ("message", "no")]),
    ],
)
def test_replies_and_streams_tell_it_apart(hybrid, said, shapes):
    gateway = gateway_of(hybrid, said)
    given = body(tools=TOOLS, max_output_tokens=300)
    whole = answered(gateway, given)
    assert shapes_of(whole["output"]) == shapes
    last = rebuilt(streamed(gateway, given))
    assert shapes_of(last["output"]) == shapes
    for reply in (whole, last):
        assert reply["status"] == "completed"
        assert {item["status"] for item in reply["output"]} == {"completed"}
        tokens = reply["usage"]["output_tokens_details"]["reasoning_tokens"]
        assert (tokens > 0) == (shapes[0][0] == "reasoning")


def test_reasoning_that_is_cut_is_incomplete(hybrid):
    gateway = gateway_of(hybrid, "<think>\nwhy and why and why</think>")
    last = rebuilt(streamed(gateway, body(max_output_tokens=12)))
    [item] = last["output"]
    assert (item["type"], item["status"], last["status"]) == ("reasoning",) + ("incomplete",) * 2


def test_logprobs_are_those_of_the_answer(hybrid):
    gateway = gateway_of(hybrid, "<think>\nwhy\n</think>\n\nyes or no")
    for reply in (
        answered(gateway, body(**LOGPROBS)),
        rebuilt(streamed(gateway, body(**LOGPROBS))),
    ):
        [part] = reply["output"][1]["content"]
        assert "".join(entry["token"] for entry in part["logprobs"]) == "yes or no"


def test_effort_and_budget_reach_the_engine(hybrid):
    gateway = gateway_of(hybrid, "yes")
    asked = {"effort": "low", "summary": "auto"}
    assert answered(gateway, body(reasoning=asked))["reasoning"] == asked
    assert gateway.requests[-1].reasoning.budget == 1024
    answered(gateway, body(thinking_token_budget=7))
    assert gateway.requests[-1].reasoning.budget == 7
    answered(gateway, body(reasoning={"effort": "none"}))
    assert prompt_of(gateway).endswith("<think>\n\n</think>\n\n")
    answered(gateway, body(chat_template_kwargs={"enable_thinking": False}))
    assert prompt_of(gateway).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"reasoning": {"generate_summary": "concise"}}, "reasoning.generate_summary"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
        ({"reasoning": {"budget": 5}}, "reasoning.budget"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
    ],
)
def test_errors_name_the_field(hybrid, fields, param):
    gateway = gateway_of(hybrid, "yes")
    assert error_of(ask(gateway, RESPONSES, body(**fields)), 400)["param"] == param


@pytest.mark.parametrize("name", ["reasoning", "thinking_token_budget"])
def test_a_model_that_does_not_reason_refuses_it(renderer, name):
    gateway = gateway_of(renderer, "yes")
    value = {"effort": "low"} if name == "reasoning" else 5
    error = error_of(ask(gateway, RESPONSES, body(**{name: value})), 400)
    assert error["param"].startswith(name)
    answered(gateway, body(reasoning={"effort": "none", "summary": None}))


def test_reasoning_of_earlier_turns_goes_to_the_template(tmp_path):
    gateway = gateway_of(renderer_of(tmp_path, SHOWING), f"<think>\nwhy\n</think>\n\nyes {CALL}")
    given = body(tools=TOOLS, max_output_tokens=300)
    [first] = many(gateway, ("POST", RESPONSES, given))
    output = first.json()["output"]
    result = {
        "type": "function_call_output",
        "call_id": output[2]["call_id"],
        "output": [{"type": "input_text", "text": "ok"}],
    }
    asked = {"role": "user", "content": "hello"}
    many(gateway, ("POST", RESPONSES, {**given, "input": [asked, *output, result]}))
    assert "<think>\nwhy\n</think>\n\nyes \n<tool_call>" in prompt_of(gateway)
    again = {**given, "input": [{**result, "call_id": "x"}], "previous_response_id": 0}
    [_, refused] = many(gateway, ("POST", RESPONSES, given), ("POST", RESPONSES, again))
    assert error_of(refused, 400)["param"] == "input[0].call_id"
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}]}
    message = {"role": "assistant", "content": "yes"}
    answered(gateway, {"input": [asked, summary, message, asked]})
    assert "assistant\n<think>\nwhy\n</think>\n\nyes<|im_end|>" in prompt_of(gateway)
