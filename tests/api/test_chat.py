"""Chat completions over a scripted gateway."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.api.scripted import MODEL, ScriptedGateway, logprob
from tests.api.talk import CHAT, answered, ask, chat_choices, error_of, hello, streamed

OUTPUTS = ("Paris is the capital 🦙 of", "Berlin", "yes, no; yes")


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, OUTPUTS)


def prompt_of(gateway, body):
    """The ids that a chat body became."""
    answered(gateway, CHAT, body)
    return np.frombuffer(gateway.requests[-1].prompt, "<i4").tolist()


def test_a_reply_has_every_field_that_strict_clients_want(gateway):
    reply = answered(gateway, CHAT, hello(max_tokens=3, n=2))
    ChatCompletion.model_validate(reply, strict=True)
    assert reply["object"] == "chat.completion"
    assert reply["model"] == MODEL
    assert isinstance(reply["created"], int)
    assert [c["index"] for c in reply["choices"]] == [0, 1]
    usage = reply["usage"]
    assert usage["prompt_tokens"] == len(gateway.requests[0].prompt) // 4
    # "Berlin" may be shorter than the bound; the end token counts.
    assert usage["completion_tokens"] == 3 + min(
        3, 1 + len(gateway.renderer.tokenizer.encode("Berlin", opens=False, special=False))
    )
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    again = answered(gateway, CHAT, hello(max_tokens=3))
    assert again["id"] != reply["id"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


@pytest.mark.parametrize(
    ("n", "stop", "logprobs"),
    list(itertools.product((1, 3), (None, "capital", "zzzz"), (False, True))),
)
def test_s05_a_stream_adds_up_to_the_whole(gateway, n, stop, logprobs):
    body = hello(n=n, stop=stop, logprobs=logprobs, top_logprobs=2 if logprobs else None)
    whole = answered(gateway, CHAT, body)
    events = streamed(gateway, CHAT, {**body, "stream_options": {"include_usage": True}})
    for event in events:
        ChatCompletionChunk.model_validate(event, strict=True)
    assert len({event["id"] for event in events}) == 1
    assert events[-1]["choices"] == []
    assert {e["usage"] is None for e in events[:-1]} == {True}
    counted = {**events[-1]["usage"], "prompt_tokens_details": None}
    assert counted == {**whole["usage"], "prompt_tokens_details": None}
    choices = chat_choices(events)
    assert choices.keys() == set(range(n))
    for choice in whole["choices"]:
        mine = choices[choice["index"]]
        assert mine["content"] == choice["message"]["content"]
        assert mine["finish_reason"] == choice["finish_reason"] == "stop"
        assert mine["entries"] == (choice["logprobs"] or {"content": []})["content"]


def test_without_include_usage_no_chunk_speaks_of_it(gateway):
    assert all("usage" not in event for event in streamed(gateway, CHAT, hello()))
    assert all(event["choices"] for event in streamed(gateway, CHAT, hello()))


def test_a_streamed_line_is_one_to_any_client(renderer):
    """Many clients cut lines where Python's str.splitlines does, which is inside of JSON texts."""
    said = "a\x85b\u2028c\u2029d"
    response = ask(ScriptedGateway(renderer, (said,)), CHAT, hello(stream=True))
    lines = [line for line in response.text.splitlines() if line]
    assert lines.pop() == "data: [DONE]"
    told = [json.loads(line.removeprefix("data: "))["choices"][0]["delta"] for line in lines]
    assert "".join(delta.get("content") or "" for delta in told) == said


def test_s06_one_token_and_stop_on_the_first_token(renderer):
    gateway = ScriptedGateway(renderer, ("the", ""))
    events = streamed(gateway, CHAT, hello(n=2, max_tokens=1))
    choices = chat_choices(events)
    assert choices[0] == {"content": "the", "entries": [], "finish_reason": "length"}
    assert choices[1] == {"content": "", "entries": [], "finish_reason": "stop"}


def test_s12_logprobs_spell_the_text_and_keep_exact_bytes(gateway):
    # A stop that never comes makes text lag behind ids.
    reply = answered(
        gateway, CHAT, hello(logprobs=True, top_logprobs=3, stop=["of course", "zzzz"])
    )
    (choice,) = reply["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == reply["usage"]["completion_tokens"]
    assert "".join(entry["token"] for entry in entries) == OUTPUTS[0]
    assert bytes(b for entry in entries for b in entry["bytes"]).decode() == OUTPUTS[0]
    assert choice["message"]["content"] == OUTPUTS[0]
    ids = gateway.renderer.tokenizer.encode(OUTPUTS[0], opens=False, special=False).tolist()
    assert [entry["logprob"] for entry in entries] == [logprob(token) for token in [*ids, 2]]
    for entry in entries:
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]


def test_logprobs_without_top(gateway):
    (choice,) = answered(gateway, CHAT, hello(logprobs=True, max_tokens=2))["choices"]
    assert [entry["top_logprobs"] for entry in choice["logprobs"]["content"]] == [[], []]
    (choice,) = answered(gateway, CHAT, hello(logprobs=False))["choices"]
    assert choice["logprobs"] is None


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_a03_content_parts_are_their_texts_joined_by_nothing(gateway, role):
    def body(content):
        return {"messages": [{"role": role, "content": content}, {"role": "user", "content": "x"}]}

    parts = [{"type": "text", "text": "a b"}, {"type": "text", "text": "c"}]
    assert prompt_of(gateway, body(parts)) == prompt_of(gateway, body("a bc"))


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ([], "messages[0].content"),
        ([{"type": "text"}], "messages[0].content[0]"),
        ([{"type": "text", "text": 5}], "messages[0].content[0]"),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}],
         "messages[0].content[1]"),
        (5, "messages[0].content"),
        (None, "messages[0].content"),
    ],
)  # fmt: skip
def test_a03_content_that_is_no_text_is_refused(gateway, content, param):
    body = {"messages": [{"role": "user", "content": content}]}
    assert error_of(ask(gateway, CHAT, body), 400)["param"] == param
    assert gateway.requests == []


@pytest.mark.parametrize("arguments", ["[" * 100_000, "[" * 300 + "]" * 300, '{"a":' * 50_000])
def test_arguments_of_a_tool_call_that_are_nested_too_deeply_are_refused(gateway, arguments):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    body = {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}
    error = error_of(ask(gateway, CHAT, body), 400)
    assert error["param"] == "messages[0].tool_calls[0].function.arguments"


def test_a04_null_content_of_an_assistant_is_empty(gateway):
    def body(**message):
        turns = [{"role": "user", "content": "x"}, {"role": "assistant", **message}]
        return {"messages": [*turns, {"role": "user", "content": "y"}]}

    empty = prompt_of(gateway, body(content=""))
    assert prompt_of(gateway, body(content=None)) == empty
    assert prompt_of(gateway, body()) == empty


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 9, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 9}, 5),
        ({"max_tokens": None, "max_completion_tokens": 4}, 4),
        ({"max_tokens": 5.0}, 5),
        ({"max_tokens": 0}, 0),
    ],
)
def test_a06_the_smaller_output_bound_holds(gateway, fields, bound):
    reply = answered(gateway, CHAT, hello(**fields))
    assert reply["usage"]["completion_tokens"] == bound
    assert reply["choices"][0]["finish_reason"] == "length"


def test_a06_without_a_bound_the_configured_default_holds(renderer):
    for fields in ({}, {"max_tokens": None}):
        gateway = ScriptedGateway(renderer)
        assert ask(gateway, CHAT, hello(**fields), default_max_tokens=77).status_code == 200
        assert gateway.requests[0].params.max_new_tokens == 77


@pytest.mark.parametrize("value", [-1, 1.5, "5", True, 10**30])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_q04_output_bounds_that_are_none(gateway, name, value):
    assert error_of(ask(gateway, CHAT, hello(**{name: value})), 400)["param"] == name


def test_continuing_the_final_message(gateway):
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Well,"}]
    ids = prompt_of(gateway, {"messages": turns, "continue_final_message": True})
    assert gateway.renderer.tokenizer.decode(ids, skip_special=False).endswith("assistant\nWell,")
    ids = prompt_of(gateway, {"messages": turns[:1], "add_generation_prompt": False})
    assert gateway.renderer.tokenizer.decode(ids, skip_special=False).endswith("x<|im_end|>\n")
    both = {"continue_final_message": True, "add_generation_prompt": True}
    assert error_of(ask(gateway, CHAT, {"messages": turns, **both}), 400)["param"] == (
        "continue_final_message"
    )


def test_extras_reach_the_gateway(gateway):
    answered(
        gateway,
        CHAT,
        hello(
            temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.2, min_tokens=2,
            stop_token_ids=[5], ignore_eos=True, logit_bias={"9": -3}, seed=11, stop="zz",
            frequency_penalty=0.3, presence_penalty=0.4, priority=3, rid="mine",
            program={"id": "p", "call": "0.1", "parent": "0", "siblings": 2},
        ),
    )  # fmt: skip
    (request,) = gateway.requests
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 7, 0.1)
    assert (params.repetition_penalty, params.min_new_tokens, params.seed) == (1.2, 2, 11)
    assert (params.stop_token_ids, params.ignore_eos, params.stop) == ((5,), True, ("zz",))
    assert (params.logit_bias, params.frequency_penalty) == ({9: -3.0}, 0.3)
    assert (params.presence_penalty, request.priority, request.rid) == (0.4, 3, "mine")
    assert request.program is not None
    assert (request.program.parent, request.program.siblings) == ("0", 2)


def test_cache_salt_makes_a_namespace(gateway):
    for salt in (None, "", "a", "b"):
        answered(gateway, CHAT, hello(cache_salt=salt))
    first, second, third, fourth = (request.namespace for request in gateway.requests)
    assert first == second == ""
    assert len({first, third, fourth}) == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usages": True}},
         "stream_options.include_usages"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"n": 0}, "n"),
        ({"n": 10_000}, "n"),
        ({"min_tokens": 9, "max_tokens": 5}, "min_tokens"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"program": {"id": "p", "colour": 1}}, "program.colour"),
        ({"rid": "x" * 300}, "rid"),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(gateway, fields, param):
    assert error_of(ask(gateway, CHAT, hello(**fields)), 400)["param"] == param
