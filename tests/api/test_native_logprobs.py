"""Log-probabilities of the native dialect."""

from __future__ import annotations

import pytest

from tests.api.scripted import ScriptedGateway, logprob
from tests.api.talk import answered, streamed

OUTPUTS = ("Paris is 🦙", "Berlin")


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, OUTPUTS)


def generate(gateway, **body):
    return answered(gateway, "/generate", body)


def ids_of(renderer, text):
    return renderer.tokenizer.encode(text, opens=False, special=True).tolist()


def test_logprobs_of_outputs_and_prompt(gateway, renderer):
    prompt, out = ids_of(renderer, "the cat sat"), [*ids_of(renderer, OUTPUTS[0]), 2]
    spell = renderer.tokenizer.token_text

    def ask_from(start, **more):
        body = {"text": "the cat sat", "return_logprob": True, "logprob_start_len": start, **more}
        return generate(gateway, **body)["meta_info"]

    meta = ask_from(0, return_text_in_logprobs=True, top_logprobs_num=2)
    assert meta["output_token_logprobs"] == [[logprob(t), t, spell(t)] for t in out]
    assert meta["output_token_logprobs_length"] == len(out)
    assert meta["input_token_logprobs"] == [
        [None, prompt[0], spell(prompt[0])],
        *([logprob(t), t, spell(t)] for t in prompt[1:]),
    ]
    assert meta["input_top_logprobs"][0] is None
    assert [len(best) for best in meta["input_top_logprobs"][1:]] == [2] * (len(prompt) - 1)
    assert [len(best) for best in meta["output_top_logprobs"]] == [2] * len(out)
    assert ask_from(2)["input_token_logprobs"] == [[logprob(t), t, None] for t in prompt[2:]]
    assert ask_from(-1)["input_token_logprobs"] == []
    assert gateway.requests[-1].prompt_logprobs is None
    assert ask_from(99)["input_token_logprobs"] == []
    assert "output_token_logprobs" not in generate(gateway, text="x")["meta_info"]


def test_sisters_share_the_scores_of_their_prompt(gateway):
    first, second = generate(
        gateway, text="the cat", return_logprob=True, logprob_start_len=0, sampling_params={"n": 2}
    )
    key = "input_token_logprobs"
    assert first["meta_info"][key] == second["meta_info"][key]
    assert second["meta_info"][key][1][0] is not None


PROMPT_FIELDS = {"input_token_logprobs", "input_top_logprobs", "prompt"}


@pytest.mark.parametrize("delay", [0, 2, 9])
def test_a_stream_tells_of_the_prompt_twice_and_whole(renderer, delay):
    """When it is complete, and with the finish; also the outputs that finish before."""
    gateway = ScriptedGateway(renderer, ("Paris is in France", "Berlin", ""))
    gateway.score_delay = delay
    body = {"input": [{"text": "the cat sat"}], "return_logprob": True, "top_logprobs_num": 1,
            "logprob_start_len": 0, "sampling_params": {"n": 3}}  # fmt: skip
    whole = generate(gateway, **body)
    chunks = streamed(gateway, "/generate", body)
    for index in range(3):
        mine = [chunk for chunk in chunks if chunk["index"] == index]
        for field in PROMPT_FIELDS:
            told = [chunk for chunk in mine if field in chunk["meta_info"]]
            assert told[-1] is mine[-1]
            assert len(told) <= 2
            for chunk in told:
                assert chunk["meta_info"][field] == whole[index]["meta_info"][field]
        assert None not in [entry[0] for entry in told[-1]["meta_info"]["input_token_logprobs"][1:]]
        last = mine[-1]["meta_info"]
        assert last["output_token_logprobs"] == whole[index]["meta_info"]["output_token_logprobs"]


def test_an_entry_is_made_once(renderer):
    """Whatever the number of chunks and outputs."""
    gateway = ScriptedGateway(renderer, ("the quick brown fox " * 9,))
    spelt = []
    inner = renderer.tokenizer.token_text
    renderer.tokenizer.token_text = lambda token: spelt.append(token) or inner(token)
    try:
        body = {"text": "the cat " * 40, "return_logprob": True, "logprob_start_len": 0,
                "return_text_in_logprobs": True, "sampling_params": {"n": 2}}  # fmt: skip
        chunks = streamed(gateway, "/generate", body)
    finally:
        del renderer.tokenizer.token_text
    ends = [chunk["meta_info"] for chunk in chunks if chunk["meta_info"]["finish_reason"]]
    outputs = sum(end["completion_tokens"] for end in ends)
    assert len(spelt) == outputs + ends[0]["prompt_tokens"]


def test_an_aborted_stream_tells_what_it_has_of_the_prompt(renderer):
    gateway = ScriptedGateway(renderer)
    gateway.score_delay = 1
    gateway.abort("mine")
    body = {"text": "the cat sat", "return_logprob": True, "logprob_start_len": 0, "rid": "mine"}
    last = streamed(gateway, "/generate", body)[-1]["meta_info"]
    assert last["finish_reason"]["type"] == "abort"
    assert last["input_token_logprobs"] == [
        [None, token, None] for token in ids_of(renderer, "the cat sat")
    ]


@pytest.mark.parametrize("best", [0, 2])
def test_ids_asked_for_by_name(gateway, renderer, best):
    prompt, out = ids_of(renderer, "the cat sat"), [*ids_of(renderer, OUTPUTS[0]), 2]
    named = [[logprob(9), 9, None], [logprob(300), 300, None]]
    body = {"text": "the cat sat", "return_logprob": True, "logprob_start_len": 1,
            "token_ids_logprob": [9, 300], "top_logprobs_num": best}  # fmt: skip
    found = generate(gateway, **body)["meta_info"]
    assert found["output_token_ids_logprobs"] == [named] * len(out)
    assert found["input_token_ids_logprobs"] == [named] * (len(prompt) - 1)
    assert ("output_top_logprobs" in found) is bool(best)
    for row in found.get("output_top_logprobs", []) + found.get("input_top_logprobs", []):
        assert len(row) == best
    first = generate(gateway, **body | {"logprob_start_len": 0})["meta_info"]
    assert first["input_token_ids_logprobs"] == [None, *[named] * (len(prompt) - 1)]
    last = streamed(gateway, "/generate", body)[-1]["meta_info"]
    assert last["output_token_ids_logprobs"] == found["output_token_ids_logprobs"]


def test_ids_by_name_for_each_prompt(gateway):
    rows = generate(gateway, text=["a", "b"], return_logprob=True, token_ids_logprob=[[9], []])
    assert all(len(row) == 1 for row in rows[0]["meta_info"]["output_token_ids_logprobs"])
    assert "output_token_ids_logprobs" not in rows[1]["meta_info"]
