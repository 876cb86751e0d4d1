"""/tokenize and /detokenize, in the shapes of vLLM's and SGLang's clients."""

from __future__ import annotations

import pytest

from tests.api.scripted import MODEL, ScriptedGateway
from tests.api.talk import answered, ask, error_of

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer)


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_text_and_back(gateway, renderer, prefix) -> None:
    text = "the quick 🦙 fox<|im_end|>"
    found = answered(gateway, prefix + "/tokenize", {"model": MODEL, "prompt": text})
    assert found == {
        "count": len(found["tokens"]),
        "max_model_len": 512,
        "tokens": renderer.encode_text(text).tolist(),
        "token_strs": None,
    }
    back = answered(gateway, prefix + "/detokenize", {"model": MODEL, "tokens": found["tokens"]})
    assert back == {"prompt": text, "text": "the quick 🦙 fox"}
    back = answered(
        gateway, "/detokenize", {"tokens": found["tokens"], "skip_special_tokens": False}
    )
    assert back["text"] == text


def test_several_texts_and_back(gateway) -> None:
    texts = ["one", "", "two three"]
    found = answered(gateway, "/tokenize", {"prompt": texts, "return_token_strs": True})
    assert found["count"] == [len(row) for row in found["tokens"]]
    assert ["".join(row) for row in found["token_strs"]] == texts
    back = answered(gateway, "/detokenize", {"tokens": found["tokens"]})
    assert back == {"prompt": texts, "text": texts}


def test_nothing(gateway) -> None:
    assert answered(gateway, "/tokenize", {"prompt": ""})["tokens"] == []
    assert answered(gateway, "/detokenize", {"tokens": []}) == {"prompt": "", "text": ""}


def test_bos(bos_renderer) -> None:
    gateway = ScriptedGateway(bos_renderer)
    with_bos = answered(gateway, "/tokenize", {"prompt": "hello"})["tokens"]
    assert with_bos[0] == bos_renderer.tokenizer.bos_id
    body = {"prompt": "hello", "add_special_tokens": False}
    assert answered(gateway, "/tokenize", body)["tokens"] == with_bos[1:]


def test_a_conversation_is_counted_as_the_chat_route_counts_it(gateway) -> None:
    found = answered(gateway, "/tokenize", {"messages": MESSAGES})
    usage = answered(gateway, "/v1/chat/completions", {"messages": MESSAGES})["usage"]
    assert found["count"] == usage["prompt_tokens"]
    closed = answered(gateway, "/tokenize", {"messages": MESSAGES, "add_generation_prompt": False})
    assert closed["tokens"] == found["tokens"][: closed["count"]]
    assert closed["count"] < found["count"]


def test_longer_than_the_context_is_counted_too(gateway) -> None:
    assert answered(gateway, "/tokenize", {"prompt": "fox " * 2000})["count"] > 512


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": []}, "prompt"),
        ("/tokenize", {"prompt": ["a", 1]}, "prompt[1]"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "clown", "content": "x"}]}, "messages[0].role"),
        ("/tokenize", {"messages": MESSAGES, "tools": [{}]}, "tools"),
        ("/tokenize", {"prompt": "a", "colour": 1}, "colour"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": [2**70]}, "tokens"),
        ("/detokenize", {"tokens": [[1], ["a"]]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, [2]]}, "tokens"),
        ("/detokenize", {"tokens": [[1], 2]}, "tokens[1]"),
    ],
)
def test_errors_name_the_field(gateway, path, body, param) -> None:
    assert error_of(ask(gateway, path, body), 400)["param"] == param


@pytest.mark.parametrize(
    ("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})]
)
def test_another_model(gateway, path, body) -> None:
    error = error_of(ask(gateway, path, body | {"model": "gpt-4"}), 404)
    assert error["code"] == "model_not_found"


def test_models(gateway) -> None:
    one = ask(gateway, f"/v1/models/{MODEL}", None, "GET").json()
    assert (one["id"], one["object"], one["max_model_len"]) == (MODEL, "model", 512)
    [listed] = ask(gateway, "/v1/models", None, "GET").json()["data"]
    assert 0 <= listed.pop("created") - one.pop("created") <= 60  # each ask is a server of its own
    assert listed == one
    assert error_of(ask(gateway, "/v1/models/gpt-4", None, "GET"), 404)["param"] == "model"
