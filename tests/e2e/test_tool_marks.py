"""Calls of a model whose tokenizer has tokens for what marks them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest

from tests import tiny
from tests.e2e.test_serve import Server, no_leak, post
from tests.tiny_tokenizer import make_tokenizer

BEGIN, END = "<tool_call>", "</tool_call>"
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
ASKED = {"messages": [{"role": "user", "content": "hello"}], "tools": [TOOL], "max_tokens": 120}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """END is a control token, BEGIN an added one that is text as well."""
    folder = tmp_path_factory.mktemp("marks")
    tiny.make_model(folder, vocab=448, max_position_embeddings=2048, eos_token_id=2)
    return make_tokenizer(folder, added_tokens=(BEGIN,), control_tokens=(END,))


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory) -> Iterator[Server]:
    running = Server(folder, tmp_path_factory.mktemp("serve") / "log")
    try:
        yield running.wait_ready()
        no_leak(running)
    finally:
        running.stop()


def marks(server: Server) -> dict[str, int]:
    ids = {}
    for text in (BEGIN, END):
        [ids[text]] = post(server, "/tokenize", prompt=text, add_special_tokens=False).json()[
            "tokens"
        ]
    return ids


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_marked_by_its_tokens(server: Server, stream: bool) -> None:
    """Every token is sampled where log-probabilities are wanted, and told with them."""
    body = {**ASKED, "tool_choice": "required", "parallel_tool_calls": False, "temperature": 1}
    body |= {"logprobs": True, "stream": stream}
    reply = post(server, "/v1/chat/completions", **body)
    assert reply.status_code == 200, reply.text
    if stream:
        lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
        choices = [json.loads(line)["choices"][0] for line in lines]
        found = [choice["logprobs"] for choice in choices]
        told = [each["token"] for logprobs in found if logprobs for each in logprobs["content"]]
        written = "".join(
            call["function"].get("arguments", "")
            for choice in choices
            for call in choice["delta"].get("tool_calls", [])
        )
    else:
        [choice] = reply.json()["choices"]
        [call] = choice["message"]["tool_calls"]
        written = call["function"]["arguments"]
        told = [each["token"] for each in choice["logprobs"]["content"]]
    assert json.loads(written).get("a", 1) in (1, 2)
    assert (told[0], told[-1]) == (BEGIN, "")  # a control token is told without letters
    assert "".join(told).endswith("}\n")


def test_a_model_that_draws_the_token_begins_a_call(server: Server) -> None:
    body = {**ASKED, "temperature": 1, "logit_bias": {str(marks(server)[BEGIN]): 100}}
    [choice] = post(server, "/v1/chat/completions", **body).json()["choices"]
    assert choice["finish_reason"] == "tool_calls", choice
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "f"


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_the_end_of_no_call_is_no_text(server: Server, choice: str) -> None:
    biased = {str(marks(server)[END]): 100, str(marks(server)[BEGIN]): -100}
    body = {**ASKED, "max_tokens": 9, "temperature": 1, "seed": 1, "logit_bias": biased}
    [told] = post(server, "/v1/chat/completions", **body, tool_choice=choice).json()["choices"]
    assert told["message"]["content"]
    assert END not in told["message"]["content"]


def test_elsewhere_control_tokens_are_never_text(server: Server) -> None:
    biased = {str(marks(server)[END]): 100}
    params = {"regex": "[a-z<>/_]{8,20}", "max_new_tokens": 30, "logit_bias": biased}
    reply = post(server, "/generate", text="x", sampling_params=params).json()
    assert marks(server)[END] not in reply["output_ids"]
