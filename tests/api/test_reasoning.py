"""Reasoning on chat over a scripted model: told apart, switched, budgeted."""

from __future__ import annotations

import pytest
from openai.types.chat import ChatCompletion

from radixserve.config.schema import TextConfig
from radixserve.text.chat import ChatTemplate
from radixserve.text.files import read_folder
from radixserve.text.renderer import Renderer
from radixserve.text.tokenizer import Tokenizer
from tests.api.scripted import ScriptedGateway
from tests.api.talk import CHAT, answered, ask, error_of, hello, streamed
from tests.api.tool_talk import CALL, PARIS, TOOLS, calls_of, prompt_of
from tests.tiny_tokenizer import CHATML, make_tokenizer

OPENS = "{{ '<|im_start|>assistant\n<think>\n' }}"
# As Qwen 3: the prompt ends the reasoning where it is switched off, else the model begins it.
HYBRID = CHATML.replace(
    "{{ '<|im_start|>assistant\n' }}",
    "{{ '<|im_start|>assistant\n' }}{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}",
)
OPENING = CHATML.replace("{{ '<|im_start|>assistant\n' }}", OPENS)
EFFORTS = CHATML.replace(
    "{{ '<|im_start|>assistant\n' }}",
    "{{ reasoning_effort | default('none') }}{{ '<think>\n' }}{# </think> #}",
)
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}


def renderer_of(folder, template, parser="template", **options):
    files = read_folder(make_tokenizer(folder, chat_template=template, vocab_size=500, **options))
    config = TextConfig(reasoning_parser=parser)
    return Renderer(Tokenizer(files), ChatTemplate.load(files), config)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    return renderer_of(tmp_path_factory.mktemp("hybrid"), HYBRID)


@pytest.fixture(scope="module")
def opening(tmp_path_factory):
    tags = ("<think>", "</think>")
    return renderer_of(tmp_path_factory.mktemp("opening"), OPENING, added_tokens=tags)


def gateway_of(renderer, *outputs):
    return ScriptedGateway(renderer, outputs, context_len=4096)


def refused(gateway, body):
    return error_of(ask(gateway, CHAT, body), 400)


def parts(events):
    """(reasoning, content) of a stream's deltas; reasoning comes first, under both names."""
    thoughts, content = "", ""
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            assert delta.get("reasoning") == delta.get("reasoning_content")
            if delta.get("reasoning"):
                assert not content
                thoughts += delta["reasoning"]
            content += delta.get("content") or ""
    return thoughts, content


@pytest.mark.parametrize(
    ("template", "said", "thoughts", "content"),
    [
        ("hybrid", "<think>\nwhy\n</think>\n\nyes", "why", "yes"),
        ("hybrid", "yes", None, "yes"),
        ("hybrid", "<think>\nwhy", "why", ""),
        ("opening", "why\n</think>\n\nyes", "why", "yes"),
        ("opening", "</think>\n\nyes", None, "yes"),
        ("opening", "why and why", "why and why", ""),
        ("opening", "why</think>", "why", ""),
    ],
)
def test_replies_and_streams_tell_it_apart(request, template, said, thoughts, content):
    gateway = gateway_of(request.getfixturevalue(template), said)
    reply = answered(gateway, CHAT, hello(max_tokens=100))
    message = ChatCompletion.model_validate(reply).choices[0].message
    assert message.content == content
    assert message.reasoning_content == message.reasoning == thoughts
    events = streamed(gateway, CHAT, hello(max_tokens=100, stream=True))
    assert parts(events) == (thoughts or "", content)
    assert reply["choices"][0]["finish_reason"] == "stop"
    details = reply["usage"]["completion_tokens_details"]
    encode = gateway.renderer.tokenizer.encode
    reasoned = said.removeprefix("<think>").partition("</think>")[0]
    assert (details["reasoning_tokens"] > 0) == bool(thoughts)
    assert details["reasoning_tokens"] <= len(encode(reasoned, opens=False, special=False)) + 1


def test_it_stays_in_the_text_on_request(opening):
    gateway = gateway_of(opening, "why\n</think>\n\nyes")
    reply = answered(gateway, CHAT, hello(max_tokens=100, separate_reasoning=False))
    message = reply["choices"][0]["message"]
    assert message["content"] == "why\n</think>\n\nyes"
    assert "reasoning_content" not in message


def test_tags_that_are_control_tokens(tmp_path):
    """They are spelled for the parser, whatever skip_special_tokens says, and never in the text."""
    template = CHATML.replace("{{ '<|im_start|>assistant\n' }}", "{{ '[THINK]' if 0 else '' }}")
    renderer = renderer_of(
        tmp_path, f"{template}{{# [/THINK] #}}", config={
            "added_tokens_decoder": {
                "416": {"content": "[THINK]", "special": True},
                "417": {"content": "[/THINK]", "special": True},
            }
        },
    )  # fmt: skip
    tokenizer = renderer.tokenizer
    ids = tokenizer.encode("[THINK]why[/THINK]yes", opens=False, special=True).tolist()
    assert tokenizer.id_of("[THINK]") in tokenizer.special_ids
    gateway = gateway_of(renderer, ids)
    for skips in (True, False):
        reply = answered(gateway, CHAT, hello(max_tokens=100, skip_special_tokens=skips))
        message = reply["choices"][0]["message"]
        assert message["reasoning_content"] == "why"
        assert message["content"].removesuffix("<|im_end|>") == "yes"
    reply = answered(gateway, CHAT, hello(max_tokens=100, separate_reasoning=False))
    assert reply["choices"][0]["message"]["content"] == "[THINK]why[/THINK]yes"


def test_calls_behind_the_reasoning(opening):
    gateway = gateway_of(opening, f"I could {CALL}\n</think>\n\nSo {CALL}")
    body = hello(tools=TOOLS, max_tokens=400)
    whole = answered(gateway, CHAT, body | {"separate_reasoning": False})["choices"][0]["message"]
    assert whole["content"] == f"I could {CALL}\n</think>\n\nSo "
    assert calls_of(whole) == [PARIS]
    message = answered(gateway, CHAT, body)["choices"][0]["message"]
    assert message["reasoning_content"] == f"I could {CALL}"
    assert calls_of(message) == [PARIS]
    assert message["content"] == "So "
    assert gateway.requests[-1].reasoning.start == "open"
    assert gateway.requests[-1].constraint is not None


def test_the_switch(hybrid):
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    for given in (off, {"reasoning_effort": "none"}):
        gateway = gateway_of(hybrid, "<think>yes")
        reply = answered(gateway, CHAT, hello(max_tokens=100, **given))
        assert reply["choices"][0]["message"]["content"] == "<think>yes"
        assert prompt_of(gateway).endswith("<think>\n\n</think>\n\n")
        assert gateway.requests[-1].reasoning is None
    gateway = gateway_of(hybrid, "yes")
    answered(gateway, CHAT, hello(chat_template_kwargs={"enable_thinking": True}))
    assert gateway.requests[-1].reasoning.start == "either"


def test_budgets(opening):
    gateway = gateway_of(opening, "yes")
    for given, budget in (
        ({}, None),
        ({"thinking_token_budget": 7}, 7),
        ({"thinking_token_budget": 0}, 0),
        ({"reasoning_effort": "low"}, 1024),
        ({"reasoning_effort": "xhigh"}, None),
        ({"reasoning_effort": "low", "thinking_token_budget": 7}, 7),
    ):
        answered(gateway, CHAT, hello(**given))
        assert gateway.requests[-1].reasoning.budget == budget
    for given in ({"thinking_token_budget": -1}, {"thinking_token_budget": 2**40}):
        assert refused(gateway, hello(**given))["param"] == "thinking_token_budget"
    assert refused(gateway, hello(reasoning_effort="huge"))["param"] == "reasoning_effort"


def test_names_of_other_servers_are_refused_with_a_hint(opening):
    gateway = gateway_of(opening, "yes")
    for name in ("thinking_budget", "max_thinking_tokens", "max_reasoning_tokens"):
        error = refused(gateway, hello(**{name: 5}))
        assert error["param"] == name
        assert "thinking_token_budget" in error["message"]


def test_a_template_with_efforts_gets_them(tmp_path):
    renderer = renderer_of(tmp_path, EFFORTS)
    gateway = gateway_of(renderer, "yes")
    answered(gateway, CHAT, hello(reasoning_effort="low"))
    assert prompt_of(gateway).endswith("low<think>\n")
    assert gateway.requests[-1].reasoning.budget is None


def test_a_model_that_does_not_reason(renderer):
    gateway = gateway_of(renderer, "<think>why</think>yes")
    reply = answered(gateway, CHAT, hello(reasoning_effort="none", max_tokens=100))
    assert reply["choices"][0]["message"]["content"] == "<think>why</think>yes"
    for given in ({"thinking_token_budget": 5}, {"reasoning_effort": "low"}):
        error = refused(gateway, hello(**given))
        assert error["param"] == next(iter(given))
        assert "does not reason" in error["message"]


def test_the_described_one(tmp_path):
    renderer = renderer_of(tmp_path, CHATML, "described")
    gateway = gateway_of(renderer, "why</think>yes")
    reply = answered(gateway, CHAT, hello(max_tokens=100))
    assert reply["choices"][0]["message"]["reasoning_content"] == "why"
    prompt = prompt_of(gateway)
    assert prompt.startswith("<|im_start|>system\nBefore you answer, think")
    assert prompt.endswith("<|im_start|>assistant\n<think>\n")
    answered(gateway, CHAT, hello(chat_template_kwargs={"enable_thinking": False}))
    assert "think" not in prompt_of(gateway)
    assert gateway.requests[-1].reasoning is None


def test_earlier_reasoning_reaches_the_template(tmp_path):
    shows = HYBRID.replace(
        "message['content']", "(message.reasoning_content or '') + message['content']"
    )
    gateway = gateway_of(renderer_of(tmp_path, shows), "yes")
    for name in ("reasoning_content", "reasoning"):
        history = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", name: "because "},
            {"role": "user", "content": "c"},
        ]
        answered(gateway, CHAT, {"messages": history})
        assert "because b<|im_end|>" in prompt_of(gateway)


def test_an_answer_that_goes_on(hybrid):
    for begun, start in (("<think>\nso", "open"), ("<think>so</think>a", None), ("a", None)):
        gateway = gateway_of(hybrid, " why</think>yes")
        history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": begun}]
        body = {"messages": history, "continue_final_message": True}
        reply = answered(gateway, CHAT, body)
        found = gateway.requests[-1].reasoning
        assert (found and found.start) == start
        content = reply["choices"][0]["message"]["content"]
        assert content == ("yes" if start else " why</think>yes")


def test_the_constraint_goes_to_the_engine_with_the_tags(opening):
    gateway = gateway_of(opening, "why</think>\n\n7")
    reply = answered(gateway, CHAT, hello(response_format=SCHEMA, thinking_token_budget=3))
    assert reply["choices"][0]["message"]["content"] == "7"
    request = gateway.requests[-1]
    assert request.constraint.kind == "json_schema"
    assert request.reasoning.end == b"</think>"
    assert request.reasoning.end_ids == (gateway.renderer.tokenizer.id_of("</think>"),)
    assert request.reasoning.budget == 3


# ---- the native dialect ----


def test_native_replies_tell_it_apart(opening):
    gateway = gateway_of(opening, "why\n</think>\n\nyes")
    prompt = "<|im_start|>assistant\n<think>\n"
    reply = answered(gateway, "/generate", {"text": prompt, "separate_reasoning": True})
    assert (reply["reasoning_content"], reply["text"]) == ("why", "yes")
    assert reply["meta_info"]["reasoning_tokens"] > 0
    body = {"text": prompt, "separate_reasoning": True, "thinking_token_budget": 3}
    last = streamed(gateway, "/generate", body)[-1]
    assert (last["reasoning_content"], last["text"]) == ("why", "yes")
    assert gateway.requests[-1].reasoning.budget == 3
    plain = answered(gateway, "/generate", {"text": prompt})
    assert plain["text"] == "why\n</think>\n\nyes"
    assert "reasoning_content" not in plain
    closed = {"text": prompt + "\n</think>\n\n", "separate_reasoning": True}
    assert answered(gateway, "/generate", closed)["reasoning_content"] == ""


def test_native_bodies_of_models_that_do_not_reason(renderer):
    gateway = gateway_of(renderer, "yes")
    for name, value in (("separate_reasoning", True), ("thinking_token_budget", 4)):
        error = error_of(ask(gateway, "/generate", {"text": "a", name: value}), 400)
        assert error["param"] == name
