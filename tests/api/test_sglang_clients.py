"""The requests of SGLang's RuntimeEndpoint and of its bench_serving, as they were recorded from
version 0.5.23 against this server, and what those clients read of the answers."""

from __future__ import annotations

import pytest

from tests.api.scripted import MODEL, ScriptedGateway
from tests.api.talk import answered, ask, streamed

SAID = "Paris is nice"

# SglSamplingParams.to_srt_kwargs() of a plain gen(), with what RuntimeEndpoint puts beside it.
GEN = {
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "max_new_tokens": 16,
    "min_new_tokens": 0,
    "n": 1,
    "stop": [],
    "stop_token_ids": [],
    "stop_regex": [],
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "ignore_eos": False,
    "regex": None,
    "json_schema": None,
}

BENCH = {
    "sampling_params": {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": False},
    "stream": True,
    "lora_path": None,
    "return_logprob": False,
    "return_routed_experts": False,
    "logprob_start_len": -1,
}


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, (SAID,))


def test_what_the_endpoint_asks_first(gateway) -> None:
    for path in ("/get_model_info", "/model_info"):
        info = ask(gateway, path, None, "GET").json()
        assert info["model_path"] == MODEL
        assert info["is_generation"] is True
    assert "version" in ask(gateway, "/server_info", None, "GET").json()
    assert ask(gateway, "/flush_cache", None, "POST").status_code == 200
    assert ask(gateway, "/flush_cache?timeout=60", None, "POST").status_code == 200
    assert ask(gateway, "/v1/models", None, "GET").status_code == 200


def test_a_prefix_is_cached_and_nothing_generated(gateway) -> None:
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 0}}
    found = answered(gateway, "/generate", body)
    assert found["text"] == ""
    assert found["meta_info"]["prompt_tokens"] > 0


def test_gen(gateway) -> None:
    body = {
        "text": "hello",
        "sampling_params": GEN,
        "return_logprob": False,
        "top_logprobs_num": 0,
        "logprob_start_len": 0,
        "return_text_in_logprobs": False,
    }
    found = answered(gateway, "/generate", body)
    assert found["text"] == SAID
    assert found["meta_info"]["finish_reason"]["type"] == "stop"


def test_gen_streamed(gateway) -> None:
    pos, text = 0, ""
    for event in streamed(gateway, "/generate", {"text": "hello", "sampling_params": GEN}):
        piece = event["text"][pos:]
        pos += len(piece)
        text += piece
        assert event["meta_info"]["completion_tokens"] >= 0
    assert text == SAID


def test_gen_with_logprobs(gateway) -> None:
    body = {
        "text": "hello you",
        "sampling_params": GEN,
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "return_text_in_logprobs": True,
    }
    meta = answered(gateway, "/generate", body)["meta_info"]
    assert meta["input_token_logprobs"][0][0] is None
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
    assert "".join(text for _, _, text in meta["output_token_logprobs"][:-1]) == SAID
    assert meta["output_top_logprobs"][0][0][1] == meta["output_token_logprobs"][0][1]


def test_select(gateway) -> None:
    """Scores of all choices in one request, then those of the ids alone."""
    prefix = answered(
        gateway, "/generate", {"text": "It is", "sampling_params": {"max_new_tokens": 0}}
    )
    start = max(prefix["meta_info"]["prompt_tokens"] - 2, 0)
    rows = answered(
        gateway,
        "/generate",
        {
            "text": ["It is yes", "It is no"],
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "return_logprob": True,
            "return_text_in_logprobs": True,
            "logprob_start_len": start,
        },
    )
    scored = [row["meta_info"]["input_token_logprobs"] for row in rows]
    assert all(isinstance(entry[0][-1], str) for entry in scored)
    assert all(row["meta_info"]["output_token_logprobs"] == [] for row in rows)
    assert all(any(value for value, *_ in entry) for entry in scored)
    ids = [[token for _, token, _ in entry] for entry in scored]
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 0}, "return_logprob": True}
    alone = answered(gateway, "/generate", body)
    assert [row["meta_info"]["input_token_logprobs"] for row in alone] == [[], []]


@pytest.mark.parametrize("prompt", [{"text": "hello"}, {"input_ids": [300, 301, 302]}])
def test_the_load_generator(gateway, prompt) -> None:
    events = streamed(gateway, "/generate", BENCH | prompt)
    texts = [event["text"] for event in events if event["text"]]
    assert texts[-1] == SAID
    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert events[-1]["meta_info"]["cached_tokens"] >= 0


def test_the_load_generator_with_logprobs(gateway) -> None:
    more = {"text": "hi", "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
    meta = streamed(gateway, "/generate", BENCH | more)[-1]["meta_info"]
    assert len(meta["output_token_logprobs"]) == meta["completion_tokens"]


def test_hidden_states_are_refused_by_name(gateway) -> None:
    response = ask(gateway, "/generate", {"text": "hi", "return_hidden_states": True})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "return_hidden_states"
    assert ask(gateway, "/generate", {"text": "hi", "return_hidden_states": False}).is_success
