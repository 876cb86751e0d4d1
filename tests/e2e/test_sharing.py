"""Prefixes are computed once, also when requests arrive together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from radixserve.engine import Engine
from tests.e2e.conftest import check_no_leak
from tests.e2e.test_engine import GREEDY, greedy, prompt_of


@pytest.mark.parametrize("common", [512, 519, 527])
def test_eight_requests_in_one_instant(engine: Engine, common: int) -> None:
    """The full pages of the common prefix are computed once; a second wave matches to the token."""
    engine.flush_cache()
    shared = prompt_of(common, common)
    before = engine.gauges()
    replies = greedy(engine, [[*shared, *prompt_of(20, k)] for k in range(8)], 4)
    after = engine.gauges()
    computed = after.computed_tokens - before.computed_tokens
    full = common - common % 16
    assert computed <= full + 8 * (common - full + 20)
    assert after.prompt_tokens - before.prompt_tokens == 8 * (common + 20)
    assert sum(reply["meta_info"]["cached_tokens"] for reply in replies) == (
        8 * (common + 20) - computed
    )
    second = greedy(engine, [[*shared, *prompt_of(20, k + 100)] for k in range(8)], 4)
    assert all(reply["meta_info"]["cached_tokens"] >= common for reply in second)
    alone = [*shared, *prompt_of(20, 3)]
    engine.flush_cache()
    assert greedy(engine, alone, 4)["output_ids"] == replies[3]["output_ids"]
    check_no_leak(engine)


@pytest.mark.parametrize("gap", [0.0, 0.001])
def test_nine_long_prompts(start, gap: float) -> None:
    """4,096 tokens in common, chunk 512: n plus the suffixes and at most one page each."""
    with start(kv_tokens=65536, chunk=512, token_budget=2048, audit=False) as engine:
        shared = prompt_of(4096, 4)
        prompts = [[*shared, *prompt_of(10 + k, k)] for k in range(9)]

        async def run() -> list[Any]:
            async def one(k: int) -> Any:
                await asyncio.sleep(gap * k)
                return await engine.async_generate(
                    input_ids=prompts[k], sampling_params=GREEDY | {"max_new_tokens": 2}
                )

            return await asyncio.gather(*(one(k) for k in range(9)))

        asyncio.run(run())
        suffixes = sum(len(prompt) - 4096 for prompt in prompts)
        assert engine.gauges().computed_tokens <= 4096 + suffixes + 9 * 16
        check_no_leak(engine)


def test_c02_equal_prompts_under_churn(start) -> None:
    """Two equal requests and fillers that churn a small pool: same ids as alone."""
    with start(kv_tokens=768, chunk=16, max_running=8) as engine:
        ids = prompt_of(64, 2)
        alone = greedy(engine, ids, 120)["output_ids"]
        engine.flush_cache()
        fillers = [prompt_of(60, 200 + k) for k in range(6)]
        replies = greedy(engine, [ids, ids, *fillers], 120)
        assert replies[0]["output_ids"] == replies[1]["output_ids"] == alone
        check_no_leak(engine)


@pytest.mark.parametrize("delay_ms", [1, 4, 9, 15, 19, 30, 60])
def test_c08_cancel_and_retry_harms_nobody(engine: Engine, delay_ms: int) -> None:
    shared = prompt_of(128, 77)
    prompts = [[*shared, *prompt_of(8, k)] for k in range(8)]
    others = [prompt_of(30 + k, 300 + k) for k in range(4)]
    solo = [reply["output_ids"] for reply in greedy(engine, [*prompts, *others], 12)]
    engine.flush_cache()

    async def run() -> None:
        def one(ids: list[int]) -> asyncio.Task[Any]:
            return asyncio.create_task(
                engine.async_generate(
                    input_ids=ids, sampling_params=GREEDY | {"max_new_tokens": 12}
                )
            )

        for _ in range(3):
            tasks = [one(ids) for ids in (*prompts, *others)]
            await asyncio.sleep(delay_ms / 1000)
            for k in (1, 5):
                tasks[k].cancel()
                await asyncio.gather(tasks[k], return_exceptions=True)
                tasks[k] = one(prompts[k])
            replies = await asyncio.gather(*tasks)
            assert [reply["output_ids"] for reply in replies] == solo

    asyncio.run(run())
    check_no_leak(engine)


def test_s10_an_abandoned_stream_gives_its_pages_back(engine: Engine) -> None:
    for taken in (0, 1, 5):
        stream = engine.stream(
            input_ids=prompt_of(40, 8), sampling_params=GREEDY | {"max_new_tokens": 2000}
        )
        for _ in range(taken):
            next(stream)
        stream.close()
    before = engine._gateway.aborts
    greedy(engine, [prompt_of(9, k) for k in range(50)], 3)
    assert engine._gateway.aborts == before  # normal completions abort nothing
    check_no_leak(engine)
