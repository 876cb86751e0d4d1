"""Log-probabilities of ids asked for by name: those of the whole vocabulary, beside other rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import AutoModelForCausalLM

from radixserve.engine import Engine
from tests.e2e.test_engine import prompt_of

NAMED = [7, 399, 1]


@pytest.mark.parametrize("attention", ["cpu", "native"])
def test_named_ids_as_transformers_scores_them(
    start: Callable[..., Engine], tiny_model, attention: str
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    prompts = [prompt_of(40, seed) for seed in range(3)]
    params = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    with start(attention=attention, chunk=16) as engine:
        replies = engine.generate(
            input_ids=prompts,
            sampling_params=params,
            return_logprob=True,
            logprob_start_len=30,
            top_logprobs_num=2,
            token_ids_logprob=[NAMED, [], [5]],
        )
        streamed = list(
            engine.stream(
                input_ids=prompts[0],
                sampling_params=params,
                return_logprob=True,
                token_ids_logprob=NAMED,
            )
        )[-1]["meta_info"]
    for prompt, reply, named in zip(prompts, replies, (NAMED, [], [5])):
        ids = [*prompt, *reply["output_ids"]]
        with torch.inference_mode():
            wanted = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
        meta = reply["meta_info"]
        assert [len(row) for row in meta["output_top_logprobs"]] == [2] * 4
        if not named:
            assert "output_token_ids_logprobs" not in meta
            continue
        rows = meta["input_token_ids_logprobs"] + meta["output_token_ids_logprobs"]
        assert len(rows) == 14
        for at, row in enumerate(rows, start=29):
            assert [token for _, token, _ in row] == named
            values = [value for value, *_ in row]
            assert values == pytest.approx(wanted[at, named].tolist(), abs=1e-4)
    first = replies[0]["meta_info"]["output_token_ids_logprobs"]
    for row, other in zip(streamed["output_token_ids_logprobs"], first, strict=True):
        assert [v for v, *_ in row] == pytest.approx([v for v, *_ in other], abs=1e-4)
