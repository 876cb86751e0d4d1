"""Text with control tokens spelled, and with what stopped it."""

from __future__ import annotations

import pytest

from tests.api.scripted import ScriptedGateway
from tests.api.talk import (
    CHAT,
    COMPLETIONS,
    answered,
    ask,
    chat_choices,
    error_of,
    hello,
    streamed,
)

TURN = "<|im_end|>"  # id 2, with which the script ends each output


@pytest.fixture
def gateway(renderer):
    ids = renderer.tokenizer.encode("ab", opens=False, special=False).tolist()
    more = renderer.tokenizer.encode("cd", opens=False, special=False).tolist()
    return ScriptedGateway(renderer, ([*ids, 1, *more],))


CASES = [
    ({}, {}, "abcd"),
    ({"skip_special_tokens": False}, {}, "ab<|im_start|>cd"),
    ({"skip_special_tokens": False, "no_stop_trim": True}, {}, "ab<|im_start|>cd" + TURN),
    ({"no_stop_trim": True}, {}, "abcd"),
    ({"no_stop_trim": True}, {"stop": ["bc"]}, "abc"),
    ({"skip_special_tokens": False}, {"stop": ["bc"]}, "a"),
    ({"skip_special_tokens": False, "no_stop_trim": True}, {"stop": ["bc"]}, "ab<|im_start|>c"),
    ({"spaces_between_special_tokens": False}, {}, "abcd"),
]


@pytest.mark.parametrize(("options", "more", "text"), CASES)
def test_native_text(gateway, options, more, text) -> None:
    body = {"text": "x", "sampling_params": {**options, **more}}
    found = answered(gateway, "/generate", body)
    assert found["text"] == text
    last = streamed(gateway, "/generate", body)[-1]
    assert (last["text"], last["output_ids"]) == (text, found["output_ids"])


@pytest.mark.parametrize(("options", "more", "text"), CASES)
def test_openai_text(gateway, options, more, text) -> None:
    found = answered(gateway, CHAT, hello(**options, **more))
    assert found["choices"][0]["message"]["content"] == text
    assert chat_choices(streamed(gateway, CHAT, hello(**options, **more)))[0]["content"] == text
    found = answered(gateway, COMPLETIONS, {"prompt": "x", **options, **more})
    assert found["choices"][0]["text"] == text


def test_the_name_of_vllm(gateway) -> None:
    body = hello(include_stop_str_in_output=True, stop="bc")
    assert answered(gateway, CHAT, body)["choices"][0]["message"]["content"] == "abc"


@pytest.mark.parametrize(
    ("name", "value"), [("skip_special_tokens", False), ("no_stop_trim", True)]
)
def test_parts_keep_ids_and_refuse_other_texts(gateway, name, value) -> None:
    body = {"input": [{"text": "x"}], "sampling_params": {name: value}}
    error = error_of(ask(gateway, "/generate", body), 400)
    assert error["param"] == f"sampling_params.{name}"
