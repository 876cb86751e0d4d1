"""Blocks that are more than their role: their JSON form, and what is none."""

from __future__ import annotations

import json

import pytest

from radixserve.errors import InvalidRequest
from radixserve.text.blocks import Block, Called, block_to_json, read_block, role_of
from radixserve.text.chat import ChatTemplate
from radixserve.text.files import DEFAULT_TEMPLATE, read_folder
from radixserve.text.parts import encode_parts
from radixserve.text.tokenizer import Tokenizer
from radixserve.text.tool_calls import SYNTAXES, ToolSpeech
from tests.tiny_tokenizer import make_tokenizer

CALLS = (Called("call_1", "now"), Called("call_2", "look-up"))
BLOCKS = ["user", Block("assistant", CALLS), Block("tool", result_of=CALLS[0])]


@pytest.mark.parametrize("block", BLOCKS, ids=role_of)
def test_a_block_survives_json(block):
    assert read_block(json.loads(json.dumps(block_to_json(block)))) == block


def called(**fields):
    return {"role": "assistant", "called": [{"id": "a", "name": "b"} | fields]}


@pytest.mark.parametrize(
    "data",
    [
        None, 3, "", "a b", {}, {"role": "user"}, {"role": "assistant"},
        {"role": "assistant", "called": []}, {"role": "assistant", "called": "a"},
        called(id=""), called(id=3), called(name="a b"), called(name=None), called(x=1),
        {"role": "user", "called": [{"id": "a", "name": "b"}]},
        {"role": "tool"}, {"role": "tool", "tool_call_id": "<|im_end|>"},
        {"role": "tool", "tool_call_id": "a", "name": "<|im_end|>"},
        {"role": "tool", "tool_call_id": "a", "called": []},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_block_is_refused(data):
    with pytest.raises(InvalidRequest):
        read_block(data)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer(read_folder(make_tokenizer(tmp_path_factory.mktemp("tiny"))))


def shown(parts, template, tokenizer, syntax="hermes"):
    speech = ToolSpeech(SYNTAXES[syntax], is_described=False)
    chat = ChatTemplate({DEFAULT_TEMPLATE: template}, {})
    encoded = encode_parts(parts, tokenizer, chat, speech=speech)
    return encoded, tokenizer.decode(encoded.ids, skip_special=False)


PLAIN = (
    "{%- for m in messages %}{{- '[' + m.role + ']' + m.content + '[/]' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '[assistant]' }}{%- endif %}"
)
STRICT = (
    "{%- for m in messages %}{%- if m.role == 'tool' %}{{- raise_exception('no tools here') }}"
    "{%- endif %}{{- m.content }}{%- endfor %}"
)
WENT_ON = {"ids": [40], "roles": ["user"], "open": "assistant"}
RESULT = [
    {"role_close": "assistant"},
    {"role_open": "tool", "tool_call_id": "call_1"},
    {"text": "noon"},
    {"role_close": "tool"},
    {"role_open": "assistant"},
]


def test_a_template_that_shows_no_calls_closes_the_block_as_any_other(tokenizer):
    parts = [{**WENT_ON, "called": [{"id": "call_1", "name": "now"}]}, *RESULT]
    encoded, text = shown(parts, PLAIN, tokenizer)
    assert text.endswith("[/][tool]noon[/][assistant]")
    assert encoded.roles == (
        "user",
        Block("assistant", CALLS[:1]),
        Block("tool", result_of=Called("call_1", "")),
    )
    assert encoded.open_role == "assistant"
    again, _ = shown([encoded.told(), {"text": "x"}], PLAIN, tokenizer)
    assert (again.roles, again.open_role) == (encoded.roles, "assistant")


def test_a_template_that_refuses_results_says_so_in_its_words(tokenizer):
    with pytest.raises(InvalidRequest, match="no tools here") as caught:
        shown([WENT_ON, *RESULT], STRICT, tokenizer)
    assert caught.value.param == "parts[2].role_open"


def test_text_behind_a_result_stands_behind_its_block(tokenizer):
    parts = [WENT_ON, *RESULT[:4], {"text": "loose"}]
    assert shown(parts, PLAIN, tokenizer)[1].endswith("[tool]noon[/]loose")
    assert shown(parts[:-1], PLAIN, tokenizer)[1].endswith("[tool]noon[/]")


def test_calls_add_up_in_one_block(tokenizer):
    parts = [
        {**WENT_ON, "open": {"role": "assistant", "called": [{"id": "a", "name": "f"}]}},
        {"role_close": "assistant"},
    ]
    more = [{**parts[0], "called": [{"id": "b", "name": "g"}]}, parts[1]]
    assert shown(parts, PLAIN, tokenizer)[0].roles[1].calls == (Called("a", "f"),)
    assert shown(more, PLAIN, tokenizer)[0].roles[1].calls == (Called("a", "f"), Called("b", "g"))
    with pytest.raises(InvalidRequest, match="no block of an assistant is open"):
        shown([{"ids": [40], "open": "user", "called": more[0]["called"]}], PLAIN, tokenizer)
