"""The engine on a tiny model: equal to transformers, however a prompt comes to be computed."""

from __future__ import annotations

import asyncio
import itertools
import pathlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from radixserve.engine import Engine
from radixserve.errors import ContextTooLong, EngineDead, InvalidRequest
from tests import tiny
from tests.e2e.conftest import check_no_leak

TOKENS = 400  # ids that have a token
GREEDY = {"temperature": 0, "ignore_eos": True}


def prompt_of(n: int, seed: int = 1) -> list[int]:
    return [3 + i % (TOKENS - 3) for i in tiny.prompt(n, TOKENS, seed)]


def greedy(engine: Engine, ids: Any, n: int = 8, **fields: Any) -> Any:
    params = GREEDY | {"max_new_tokens": n} | fields.pop("params", {})
    return engine.generate(input_ids=ids, sampling_params=params, **fields)


@pytest.fixture(scope="module")
def hugging_face(tiny_model: pathlib.Path) -> Callable[[list[int], int], list[int]]:
    """Greedy ids by transformers, padded rows left out as the engine must."""
    model = tiny.reference(tiny_model)

    def continue_greedily(ids: list[int], n: int) -> list[int]:
        known = list(ids)
        for _ in range(n):
            scores = tiny.reference_logits(model, known)[-1, :TOKENS]
            known.append(int(scores.argmax()))
        return known[len(ids) :]

    return continue_greedily


def test_greedy_tokens_equal_transformers(engine: Engine, hugging_face) -> None:
    for n in (1, 2, 15, 16, 17, 60, 200):
        ids = prompt_of(n, n)
        assert greedy(engine, ids, 24)["output_ids"] == hugging_face(ids, 24)


def test_c14_behind_a_cached_prefix_at_every_split_point(engine: Engine) -> None:
    """COLD=WARM: whatever part of the prompt is cached, ids are equal and scores within 1e-3."""
    ids = prompt_of(40, 9)
    fields = {"return_logprob": True, "top_logprobs_num": 3}
    engine.flush_cache()
    cold = greedy(engine, ids, 6, **fields)
    assert cold["meta_info"]["cached_tokens"] == 0
    for split in range(1, 41):
        engine.flush_cache()
        greedy(engine, ids[:split], 0)
        warm = greedy(engine, ids, 6, **fields)
        assert warm["meta_info"]["cached_tokens"] == min(split, 39)
        assert warm["output_ids"] == cold["output_ids"]
        assert scores_of(warm) == pytest.approx(scores_of(cold), abs=1e-3)


def scores_of(reply: dict[str, Any]) -> list[float]:
    return [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("chunk", [16, 48])
def test_whole_equals_chunked(start, hugging_face, page_size: int, chunk: int) -> None:
    with start(page_size=page_size, chunk=chunk, token_budget=96, max_running=8) as engine:
        prompts = [prompt_of(n, n + 50) for n in (100, 7, 64, 33)]
        replies = greedy(engine, prompts, 10)
        for ids, reply in zip(prompts, replies):
            assert reply["output_ids"] == hugging_face(ids, 10)
        check_no_leak(engine)


def test_in_a_mixed_batch(engine: Engine, hugging_face) -> None:
    """Long prompts are prefilled in chunks while others decode; nobody's tokens change."""
    prompts = [prompt_of(n, n + 7) for n in (5, 1200, 9, 700, 3, 40)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        replies = list(pool.map(lambda ids: greedy(engine, ids, 20), prompts))
    for ids, reply in zip(prompts, replies):
        assert reply["output_ids"] == hugging_face(ids, 20)
    check_no_leak(engine)


def test_q05_after_a_retraction(start, hugging_face) -> None:
    """A pool that cannot hold four of 50 + 150: same ids, scores, penalties and seeded draws."""
    prompts = [prompt_of(50, k + 80) for k in range(4)]
    params = [
        GREEDY | {"max_new_tokens": 150},
        GREEDY | {"max_new_tokens": 150},
        GREEDY | {"max_new_tokens": 150, "frequency_penalty": 0.7, "repetition_penalty": 1.3},
        {"max_new_tokens": 150, "ignore_eos": True, "sampling_seed": 11, "temperature": 0.8},
    ]

    def run(kv_tokens: int) -> tuple[list[Any], int]:
        with start(kv_tokens=kv_tokens, reserve=0.0, max_running=8) as engine:
            replies = engine.generate(
                input_ids=prompts, sampling_params=params, return_logprob=True
            )
            retractions = engine.gauges().retractions
            check_no_leak(engine)
        return replies, retractions

    small, retractions = run(400)
    large, none = run(8192)
    assert retractions > 0
    assert none == 0
    for one, other in zip(small, large):
        assert one["output_ids"] == other["output_ids"]
        assert len(scores_of(one)) == 150
        assert scores_of(one) == pytest.approx(scores_of(other), abs=1e-3)
    assert small[0]["output_ids"] == hugging_face(prompts[0], 150)


def test_prompt_scores_equal_transformers(engine: Engine, tiny_model: pathlib.Path) -> None:
    ids = prompt_of(50, 21)
    logits = tiny.reference_logits(tiny.reference(tiny_model), ids)
    want = torch.log_softmax(logits.float(), -1)[torch.arange(49), torch.tensor(ids[1:])]
    for start_at in (0, 1, 17, 49):
        for _ in range(2):  # cold, then with everything cached that may be
            reply = greedy(
                engine, ids, 1, return_logprob=True, logprob_start_len=start_at,
                top_logprobs_num=2,
            )  # fmt: skip
            entries = reply["meta_info"]["input_token_logprobs"]
            assert [entry[1] for entry in entries] == ids[start_at:]
            values = [entry[0] for entry in entries]
            if start_at == 0:
                assert values[0] is None
            first = max(start_at, 1)
            got = values[first - start_at :]
            assert got == pytest.approx(want[first - 1 :].tolist(), abs=1e-3)


def test_l09_padded_rows_are_never_sampled(engine: Engine) -> None:
    reply = engine.generate(
        input_ids=prompt_of(5),
        sampling_params={
            "temperature": 5.0, "max_new_tokens": 500, "ignore_eos": True, "sampling_seed": 3,
        },
    )  # fmt: skip
    assert len(reply["output_ids"]) == 500
    assert max(reply["output_ids"]) < TOKENS


SEEDED = {"temperature": 0.8, "sampling_seed": 42, "max_new_tokens": 16, "ignore_eos": True}


def test_p04_a_seed_is_independent_of_company(start) -> None:
    ids, other = prompt_of(20, 5), prompt_of(31, 6)
    free = {"temperature": 1.0, "max_new_tokens": 24, "ignore_eos": True}
    with start() as engine:

        def together(*calls: tuple[list[int], dict[str, Any]]) -> list[list[int]]:
            replies = engine.generate(
                input_ids=[ids for ids, _ in calls], sampling_params=[p for _, p in calls]
            )
            return [reply["output_ids"] for reply in replies]

        alone = engine.generate(input_ids=ids, sampling_params=SEEDED)["output_ids"]
        warm = engine.generate(input_ids=ids, sampling_params=SEEDED)["output_ids"]
        assert warm == alone
        assert together((other, free), (ids, SEEDED))[1] == alone
        assert together((ids, SEEDED), (other, SEEDED), (other, free))[0] == alone
        assert together((other, free), (other, SEEDED), (other, free), (ids, SEEDED))[3] == alone
        streamed = list(engine.stream(input_ids=ids, sampling_params=SEEDED))
        assert streamed[-1]["output_ids"] == alone
        four = engine.generate(input_ids=ids, sampling_params=SEEDED | {"n": 4})
        outputs = [reply["output_ids"] for reply in four]
        again = engine.generate(input_ids=ids, sampling_params=SEEDED | {"n": 4})
        assert outputs == [reply["output_ids"] for reply in again]
        assert len({tuple(output) for output in outputs}) > 1
        assert all(reply["meta_info"]["prompt_tokens"] == 20 for reply in four)
        unseeded = [
            engine.generate(input_ids=ids, sampling_params=free)["output_ids"] for _ in range(2)
        ]
        assert unseeded[0] != unseeded[1]
    with start() as engine:
        restarted = engine.generate(input_ids=ids, sampling_params=SEEDED)["output_ids"]
        assert restarted == alone


def test_p05_penalties_do_not_bleed(engine: Engine) -> None:
    ids = prompt_of(20, 30)
    calls = {
        "A": GREEDY | {"max_new_tokens": 24, "repetition_penalty": 2.0},
        "B": GREEDY | {"max_new_tokens": 24},
        "F": GREEDY | {"max_new_tokens": 24, "frequency_penalty": 2.0},
    }
    alone = {
        name: engine.generate(input_ids=ids, sampling_params=params)["output_ids"]
        for name, params in calls.items()
    }
    assert alone["A"] != alone["B"]
    assert alone["F"] != alone["B"]
    for order in ("AB", "BA", "FAB", "BAF"):
        engine.flush_cache()
        replies = engine.generate(
            input_ids=[ids] * len(order), sampling_params=[calls[name] for name in order]
        )
        for name, reply in zip(order, replies):
            assert reply["output_ids"] == alone[name]


def test_s01_text_is_cut_at_the_stop_string_streamed_and_not(engine: Engine) -> None:
    ids = prompt_of(12, 3)
    params = {"temperature": 1.0, "sampling_seed": 5, "max_new_tokens": 120, "ignore_eos": True}
    whole = engine.generate(input_ids=ids, sampling_params=params)["text"]
    assert len(whole) > 60
    for at in (0, 5, 20, 33, 50):
        stop = whole[at + 3 : at + 10]
        if "\ufffd" in stop or not stop:
            continue
        wanted = whole[: whole.index(stop)]
        limited = params | {"stop": [stop, "never there"]}
        reply = engine.generate(input_ids=ids, sampling_params=limited)
        assert reply["text"] == wanted
        assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
        seen = [chunk["text"] for chunk in engine.stream(input_ids=ids, sampling_params=limited)]
        assert seen[-1] == wanted
        assert all(wanted.startswith(text) for text in seen)


def test_s03_no_half_characters_in_a_stream(engine: Engine) -> None:
    """A random byte-level model emits many broken characters; increments join to the whole."""
    params = {"temperature": 2.0, "sampling_seed": 9, "max_new_tokens": 200, "ignore_eos": True}
    whole = engine.generate(input_ids=prompt_of(4), sampling_params=params)
    texts = [c["text"] for c in engine.stream(input_ids=prompt_of(4), sampling_params=params)]
    assert texts[-1] == whole["text"]
    assert all(later.startswith(text) for text, later in itertools.pairwise(texts))


def test_l04_stops_on_any_end_token_and_ignores_all(engine: Engine) -> None:
    """Ends of config (2) and tokenizer (<|im_end|>) are united; the token is not in the text."""
    ids = prompt_of(6)
    end = engine._gateway.renderer.tokenizer.eos_ids
    for token in {2, *end}:
        push = {"logit_bias": {str(token): 100.0}, "max_new_tokens": 5, "temperature": 0}
        reply = engine.generate(input_ids=ids, sampling_params=push)
        assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}
        assert reply["text"] == ""
        assert reply["meta_info"]["completion_tokens"] == 1
        ignored = engine.generate(input_ids=ids, sampling_params=push | {"ignore_eos": True})
        assert ignored["meta_info"]["finish_reason"]["type"] == "length"
        own = engine.generate(
            input_ids=ids, sampling_params=push | {"ignore_eos": True, "stop_token_ids": [token]}
        )
        assert own["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}


def test_p08_bad_ids_disturb_nobody(engine: Engine) -> None:
    want = greedy(engine, prompt_of(9))["output_ids"]
    for bad in ([TOKENS], [-1], [2**63], [1.5], [True], [], [[]]):
        with pytest.raises(InvalidRequest):
            greedy(engine, bad)
    for params in (
        {"logit_bias": {str(TOKENS): 5}},
        {"logit_bias": {"-1": 5}},
        {"logit_bias": {"abc": 1}},
        {"logit_bias": {"5": 1000}},
        {"stop_token_ids": [50001]},
        {"stop_token_ids": [-1], "min_new_tokens": 1},
    ):
        with pytest.raises(InvalidRequest) as caught:
            greedy(engine, prompt_of(9), params=params)
        assert caught.value.param.removeprefix("sampling_params.").split(".")[0] in params
    assert greedy(engine, prompt_of(9))["output_ids"] == want
    check_no_leak(engine)


def test_q04_limits_of_context_and_pool(start) -> None:
    with start(kv_tokens=512) as engine:
        assert len(greedy(engine, prompt_of(500), 10**9)["output_ids"]) == 12
        with pytest.raises(ContextTooLong):
            greedy(engine, prompt_of(600))
        check_no_leak(engine)


def test_closed_engine_says_so(start) -> None:
    engine = start()
    engine.close()
    engine.close()
    engine.shutdown()  # SGLang's name
    with pytest.raises(EngineDead):
        greedy(engine, [5, 6])


def test_generate_with_stream_is_the_stream(engine: Engine) -> None:
    """SGLang's spelling."""
    whole = greedy(engine, prompt_of(7), 60)
    params = GREEDY | {"max_new_tokens": 60}  # a reader who is behind gets several at once
    chunks = list(engine.generate(input_ids=prompt_of(7), sampling_params=params, stream=True))
    assert len(chunks) > 1
    assert chunks[-1]["output_ids"] == whole["output_ids"]

    async def run() -> list[Any]:
        stream = await engine.async_generate(
            input_ids=prompt_of(7), sampling_params=params, stream=True
        )
        return [chunk async for chunk in stream]

    assert asyncio.run(run())[-1]["output_ids"] == whole["output_ids"]
