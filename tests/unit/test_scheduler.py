"""The scheduler over a real cache and a fake executor whose outputs betray any wrong page."""

from __future__ import annotations

import random

import pytest

from radixserve.config.schema import ScheduleConfig
from radixserve.errors import ConfigError
from radixserve.wire.messages import FinishReason, Started
from tests.engine_driver import EngineDriver
from tests.fake_executor import ROOT, chain, expected


def prompt_of(n: int, seed: int = 0, vocab: int = 5) -> list[int]:
    return random.Random(seed).choices(range(vocab), k=n)


def long_prompt(n: int, seed: int = 0) -> list[int]:
    """From a vocabulary in which suffixes do not coincide."""
    return prompt_of(n, seed, 1000)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_output_equals_the_chain(page_size: int, overlap: bool) -> None:
    driver = EngineDriver(pages=256, page_size=page_size, overlap=overlap)
    prompts = [prompt_of(n, n) for n in (1, 3, 4, 5, 17, 33)]
    rids = [driver.submit(prompt, max_new=9) for prompt in prompts]
    driver.run()
    for rid, prompt in zip(rids, prompts):
        assert driver.output(rid) == expected(prompt, 9, 5)
        end = driver.finished(rid)
        assert end.reason is FinishReason.LENGTH
        assert (end.prompt_tokens, end.completion_tokens) == (len(prompt), 9)
        assert end.cached_tokens + end.computed_tokens == len(prompt)
    driver.no_leak()


def test_started_comes_first_and_refusals_name_their_reason() -> None:
    driver = EngineDriver(pages=8, page_size=4, context_len=20)
    good = driver.submit([1, 2])
    long = driver.submit(prompt_of(20))
    empty = driver.submit([])
    driver.run()
    assert driver.channel.events[0] == Started(good)
    assert driver.finished(long).code == "context_length_exceeded"
    assert driver.finished(empty).code == "invalid_request"
    driver.no_leak()


def test_q04_max_new_tokens_is_clamped_to_context_and_pool() -> None:
    """Policy: clamp, finish with length; a prompt with no room for one token is refused."""
    driver = EngineDriver(pages=8, page_size=4, context_len=20)
    rids = {n: driver.submit(prompt_of(n), max_new=10**9) for n in (18, 19, 20, 21)}
    driver.run()
    assert len(driver.output(rids[18])) == 2
    assert len(driver.output(rids[19])) == 1
    assert driver.finished(rids[19]).reason is FinishReason.LENGTH
    assert driver.finished(rids[20]).reason is FinishReason.ERROR
    assert driver.finished(rids[21]).reason is FinishReason.ERROR
    zero = driver.submit(prompt_of(7), max_new=0)
    driver.run()
    assert driver.output(zero) == []
    assert driver.finished(zero).reason is FinishReason.LENGTH
    driver.no_leak()


def test_q02_the_last_runner_never_runs_out_of_pages() -> None:
    driver = EngineDriver(pages=8, page_size=16, max_running=2)
    prompt = prompt_of(100)
    rid = driver.submit(prompt, max_new=500)
    driver.run()
    assert driver.finished(rid).reason is FinishReason.LENGTH
    assert driver.output(rid) == expected(prompt, 28, 5)
    other = driver.submit([1], max_new=2)
    driver.run()
    assert driver.output(other) == expected([1], 2, 5)
    driver.no_leak()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("common", [512, 519, 527])
def test_equal_prefixes_in_one_instant_compute_their_pages_once(common: int, overlap: bool) -> None:
    driver = EngineDriver(
        pages=600,
        vocab=1000,
        page_size=16,
        overlap=overlap,
        token_budget=2048,
        chunk=512,
        max_running=16,
    )
    shared = long_prompt(common)
    prompts = [[*shared, *long_prompt(24, k + 1)] for k in range(8)]
    rids = [driver.submit(prompt, max_new=3) for prompt in prompts]
    driver.run()
    for rid, prompt in zip(rids, prompts):
        assert driver.output(rid) == expected(prompt, 3, driver.vocab)
    full = common - common % 16
    computed = sum(driver.finished(rid).computed_tokens for rid in rids)
    # The full pages once, and each request's own rest; less where a later step may copy a part.
    assert common + 8 * 24 <= computed <= full + 8 * (common + 24 - full)
    again = [driver.submit([*shared, *long_prompt(24, k + 20)], max_new=3) for k in range(8)]
    driver.run()
    for rid in again:
        assert driver.finished(rid).cached_tokens >= common  # matched to the token
    driver.no_leak()


@pytest.mark.parametrize("gap", [0, 1])
def test_nine_long_prompts_have_no_leader(gap: int) -> None:
    driver = EngineDriver(
        pages=2600,
        vocab=1000,
        context_len=8192,
        page_size=16,
        token_budget=512,
        chunk=512,
        max_running=16,
    )
    shared = long_prompt(4096)
    rids = []
    for k in range(9):
        rids.append(driver.submit([*shared, k, *long_prompt(k + 3, k)], max_new=2))
        for _ in range(gap):
            driver.turn()
    driver.run()
    suffixes = sum(driver.finished(rid).prompt_tokens - 4096 for rid in rids)
    computed = sum(driver.finished(rid).computed_tokens for rid in rids)
    assert computed <= 4096 + suffixes + 9 * 16
    driver.no_leak()


def test_c11_the_answer_is_matched_by_the_next_turn() -> None:
    driver = EngineDriver(pages=64, page_size=16)
    first = prompt_of(90)
    rid = driver.submit(first, max_new=40)
    driver.run()
    history = [*first, *driver.output(rid)]
    prompt = [*history, *prompt_of(30, 3)]
    again = driver.submit(prompt, max_new=5)
    driver.run()
    assert driver.finished(again).cached_tokens == 129
    assert driver.output(again) == expected(prompt, 5, 5)
    driver.no_leak()


@pytest.mark.parametrize("page_size", [1, 16])
def test_c10_the_whole_prompt_is_cached(page_size: int) -> None:
    for n in (2 * page_size - 1, 2 * page_size, 2 * page_size + 1):
        driver = EngineDriver(pages=64, page_size=page_size, token_budget=64, chunk=32)
        seen = []
        for _ in range(3):
            rid = driver.submit(prompt_of(n), max_new=3)
            driver.run()
            assert driver.output(rid) == expected(prompt_of(n), 3, 5)
            seen.append(driver.finished(rid).cached_tokens)
        assert seen == [0, n - 1, n - 1]
        driver.no_leak()


@pytest.mark.parametrize("overlap", [False, True])
def test_q05_retraction_is_invisible(overlap: bool) -> None:
    """Four requests of 50 + 150 in a pool that cannot hold them: same outputs, in one piece."""
    driver = EngineDriver(
        pages=26, page_size=16, overlap=overlap, reserve=0.0, token_budget=128, chunk=64
    )
    prompts = [prompt_of(50, k + 1) for k in range(4)]
    rids = [driver.submit(prompt, max_new=150) for prompt in prompts]
    driver.run(5000)
    assert driver.scheduler.gauges().retractions > 0
    for rid, prompt in zip(rids, prompts):
        assert driver.output(rid) == expected(prompt, 150, 5)
        assert driver.finished(rid).completion_tokens == 150
        assert driver.finished(rid).cached_tokens <= 49
    driver.no_leak()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("turns", range(14))
def test_c07_abort_at_any_moment(turns: int, overlap: bool) -> None:
    driver = EngineDriver(page_size=4, overlap=overlap, chunk=8, token_budget=16)
    prompt = prompt_of(80)
    rid = driver.submit(prompt, max_new=3)
    other = driver.submit(prompt_of(9, 4), max_new=20)
    for _ in range(turns):
        driver.turn()
    driver.abort(rid)
    driver.abort(rid)
    driver.abort("nobody")
    driver.run()
    assert driver.finished(rid).reason in (FinishReason.ABORT, FinishReason.LENGTH)
    assert driver.output(other) == expected(prompt_of(9, 4), 20, 5)
    again = driver.submit(prompt, max_new=3)
    driver.run()
    assert driver.output(again) == expected(prompt, 3, driver.vocab)
    driver.no_leak()


def test_c07_abort_while_queued() -> None:
    driver = EngineDriver(max_running=1, token_budget=64)
    rids = [driver.submit(prompt_of(9, k), max_new=30) for k in range(12)]
    driver.turn()
    for rid in rids:
        driver.abort(rid)
    driver.run()
    assert {driver.finished(rid).reason for rid in rids} == {FinishReason.ABORT}
    driver.no_leak()


def test_q01_nobody_is_overtaken_for_ever() -> None:
    """lpm, one at a time, always hot requests waiting: the cold one is passed at most N times for
    itself and for each that was there before it."""
    most = 5
    driver = EngineDriver(
        pages=200, page_size=4, max_running=1, token_budget=256, chunk=256, max_overtakes=most
    )
    hot = prompt_of(100)
    driver.submit([*hot, 0], max_new=2)
    driver.run()
    cold, before = "", 0
    order: list[str] = []
    submitted = [driver.submit([*hot, 1, k % 5], max_new=2) for k in range(5)]
    for k in range(200):
        if k == 3:
            before = driver.scheduler.gauges().waiting
            cold = driver.submit([4, 4, 4], max_new=2)
        submitted.append(driver.submit([*hot, 2, k % 5, k % 3], max_new=2))
        driver.turn()
        driver.turn()
        if cold and any(
            getattr(e, "reason", None) and e.rid == cold for e in driver.channel.events
        ):
            break
    order = [e.rid for e in driver.channel.events if getattr(e, "reason", None)]
    position = order.index(cold)
    later = [rid for rid in order[:position] if int(rid[1:]) > int(cold[1:])]
    assert 3 <= len(later) <= (before + 1) * most + 1  # hot order is preferred, until the bound
    driver.abort(cold)
    for rid in submitted:
        driver.abort(rid)
    driver.run()
    driver.no_leak()


def test_fcfs_and_priority() -> None:
    driver = EngineDriver(max_running=1, policy="fcfs", token_budget=64)
    rids = [driver.submit(prompt_of(9, k), max_new=1) for k in range(3)]
    urgent = driver.submit(prompt_of(9, 9), max_new=1, priority=5)
    driver.run()
    order = [e.rid for e in driver.channel.events if getattr(e, "reason", None)]
    assert order == [urgent, *rids]


def test_queue_limit_is_a_clear_refusal() -> None:
    driver = EngineDriver(max_waiting=2)
    rids = [driver.submit([1, 2, 3]) for _ in range(3)]
    driver.run()
    assert driver.finished(rids[2]).code == "queue_full"
    assert driver.finished(rids[0]).reason is FinishReason.LENGTH


def test_namespaces_share_nothing() -> None:
    driver = EngineDriver()
    for namespace in ("", "a", "b"):
        rid = driver.submit(prompt_of(20), namespace=namespace)
        driver.run()
        assert driver.finished(rid).cached_tokens == 0
    driver.no_leak()


def test_cache_off_shares_nothing_and_answers_the_same() -> None:
    driver = EngineDriver(enabled=False)
    for _ in range(2):
        rid = driver.submit(prompt_of(20), max_new=5)
        driver.run()
        assert driver.finished(rid).cached_tokens == 0
        assert driver.output(rid) == expected(prompt_of(20), 5, 5)
    driver.no_leak()


@pytest.mark.parametrize("start", [1, 5, 8, 19])
@pytest.mark.parametrize("chunk", [4, 16])
def test_prompt_scores_cover_each_token_once(start: int, chunk: int) -> None:
    prompt = prompt_of(20)
    driver = EngineDriver(chunk=chunk)
    driver.submit(prompt, max_new=1)
    driver.run()
    rid = driver.submit(prompt, max_new=2, prompt_logprobs=0, prompt_logprobs_start=start)
    driver.run()
    state, want = ROOT, {}
    for position, token in enumerate(prompt[:-1]):
        state = chain(state, token)
        if position + 1 >= start:
            want[position + 1] = -float(state % 1000)
    assert driver.scores(rid) == want
    assert driver.finished(rid).cached_tokens == start - 1
    assert driver.output(rid) == expected(prompt, 2, 5)
    driver.no_leak()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("where", ["launch", "sample"])
@pytest.mark.parametrize("turns", [1, 2, 4, 7])
def test_a_failed_step_is_retried_once(where: str, turns: int, overlap: bool) -> None:
    driver = EngineDriver(overlap=overlap, chunk=8, token_budget=32)
    shared = prompt_of(30)
    prompts = [[*shared, k] for k in range(4)]
    rids = [driver.submit(prompt, max_new=6) for prompt in prompts]
    for _ in range(turns):
        driver.turn()
    driver.executor.fail_next = where
    driver.run()
    for rid, prompt in zip(rids, prompts):
        assert driver.output(rid) == expected(prompt, 6, 5)
        assert driver.finished(rid).reason is FinishReason.LENGTH
    driver.no_leak()


def test_a_request_that_fails_twice_ends_with_an_error() -> None:
    driver = EngineDriver()
    rid = driver.submit(prompt_of(5), max_new=6)
    for _ in range(2):
        driver.executor.fail_next = "sample"
        driver.turn()
    driver.run()
    end = driver.finished(rid)
    assert (end.reason, end.code) == (FinishReason.ERROR, "internal_error")
    assert "injected at sample" in end.message
    alive = driver.submit([1, 2], max_new=2)
    driver.run()
    assert driver.output(alive) == expected([1, 2], 2, 5)
    driver.no_leak()


def test_a_budget_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="token_budget"):
        EngineDriver(page_size=16, max_running=8, token_budget=16)
    assert ScheduleConfig().token_budget >= ScheduleConfig().max_running + 256


@pytest.mark.parametrize("overlap", [False, True])
def test_stop_ids_and_strings(overlap: bool) -> None:
    prompt = prompt_of(11)
    out = expected(prompt, 40, 5)
    text = "".join(chr(97 + token) for token in out)
    driver = EngineDriver(overlap=overlap, stop_ids=(out[6],))
    first = out.index(out[6])
    plain = driver.submit(prompt, max_new=40)
    free = driver.submit(prompt, max_new=40, params={"ignore_eos": True})
    cut = driver.submit(prompt, max_new=40, params={"ignore_eos": True, "stop": (text[9:12],)})
    own = driver.submit(
        prompt, max_new=40, params={"ignore_eos": True, "stop_token_ids": (out[6],)}
    )
    driver.run()
    assert driver.output(plain) == driver.output(own) == out[: first + 1]
    assert driver.finished(plain).matched == out[6]
    assert driver.output(free) == out
    end = driver.finished(cut)
    assert (end.reason, end.matched) == (FinishReason.STOP, text[9:12])
    assert end.kept_bytes == text.index(text[9:12])
    driver.no_leak()
