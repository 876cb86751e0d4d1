"""Requests that come together and part inside a page."""

from __future__ import annotations

import random

import pytest

from radixserve.scheduler.heads import WORTH
from tests.engine_driver import EngineDriver
from tests.fake_executor import expected

PAGE = 16


def tokens(n: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1000), k=n)


def made(**schedule) -> EngineDriver:
    options = {"token_budget": 2048, "chunk": 512, "max_running": 16} | schedule
    return EngineDriver(pages=600, vocab=1000, page_size=PAGE, **options)


def checked(driver: EngineDriver, prompts: list[list[int]], rids: list[str], count: int) -> int:
    """Tokens that were computed for them, whose outputs are right."""
    for rid, prompt in zip(rids, prompts):
        assert driver.output(rid) == expected(prompt, count, driver.vocab)
    driver.no_leak()
    return sum(driver.finished(rid).computed_tokens for rid in rids)


@pytest.mark.parametrize("common", [PAGE + 10, 2 * PAGE - 1, 3 * PAGE + 8])
def test_what_they_have_in_common_is_computed_once(common: int) -> None:
    driver = made()
    prompts = [[*tokens(common, 1), k, *tokens(20, k + 2)] for k in range(6)]
    rids = [driver.submit(prompt, max_new=3) for prompt in prompts]
    driver.run()
    assert checked(driver, prompts, rids, 3) == common + 6 * 21
    # One step for what is common, one for the rest of all, and all the others decode.
    assert driver.scheduler.gauges().steps == 2 + 2


def test_branches_of_several_forks_wait_for_one_step() -> None:
    driver = made()
    parents = [tokens(40, seed) for seed in (1, 2, 3)]
    rids = [driver.submit(parent, max_new=2) for parent in parents]
    driver.run()
    before = driver.scheduler.gauges().steps
    heads = [[*p, *driver.output(rid), *tokens(3, 9)] for p, rid in zip(parents, rids)]
    prompts = [[*head, k, *tokens(5, k)] for head in heads for k in range(4)]
    rids = [driver.submit(prompt, max_new=2) for prompt in prompts]
    driver.run()
    # A parent's last token has not been computed; it is part of what its children have in common.
    assert checked(driver, prompts, rids, 2) == 3 * (1 + 3) + 12 * 6
    assert driver.scheduler.gauges().steps == before + 2 + 1


def test_a_step_is_made_only_for_what_is_worth_it() -> None:
    few = made()
    assert WORTH == 24
    prompts = [[*tokens(PAGE + 11, 1), k] for k in range(3)]  # 2 * 11 tokens
    rids = [few.submit(prompt, max_new=2) for prompt in prompts]
    few.run()
    assert checked(few, prompts, rids, 2) == PAGE + 3 * 12
    assert few.scheduler.gauges().steps == 2


@pytest.mark.parametrize(
    "setting", [{"policy": "fcfs"}, {"overlap": True}], ids=["fcfs", "overlap"]
)
def test_who_may_not_pass_or_is_not_applied_in_time_is_not_held(setting) -> None:
    driver = made(**setting)
    warm = driver.submit(tokens(4, 5), max_new=30)
    driver.turn()
    prompts = [[*tokens(PAGE + 10, 1), k] for k in range(6)]
    rids = [driver.submit(prompt, max_new=3) for prompt in prompts]
    driver.run()
    assert len(driver.output(warm)) == 30
    assert checked(driver, prompts, rids, 3) == PAGE + 6 * 11


def test_others_go_on_meanwhile_and_nobody_is_held_twice() -> None:
    driver = made()
    lone = [*tokens(9, 77)]
    running = driver.submit(lone, max_new=12)
    driver.turn()
    first = [[*tokens(PAGE + 10, 1), k, *tokens(3, k)] for k in range(4)]
    rids = [driver.submit(prompt, max_new=2) for prompt in first]
    driver.turn()  # one computes for all
    more = [[*tokens(PAGE + 10, 1), k, *tokens(12, 3), k] for k in range(4)]
    rids += [driver.submit(prompt, max_new=2) for prompt in more]
    driver.run()
    assert driver.output(running) == expected(lone, 12, driver.vocab)
    checked(driver, [*first, *more], rids, 2)
    assert driver.scheduler.gauges().steps == 12


def test_an_abort_of_the_one_that_computes_leaves_the_others_right() -> None:
    for turns in (1, 2, 3):
        driver = made()
        prompts = [[*tokens(PAGE + 12, 1), k, *tokens(20, k)] for k in range(4)]
        rids = [driver.submit(prompt, max_new=4) for prompt in prompts]
        for _ in range(turns):
            driver.turn()
        driver.abort(rids[0])
        driver.run()
        checked(driver, prompts[1:], rids[1:], 4)


def test_namespaces_have_nothing_in_common() -> None:
    driver = made()
    prompts = [[*tokens(PAGE + 14, 1), k] for k in range(4)]
    rids = [driver.submit(prompt, max_new=2, namespace=str(k)) for k, prompt in enumerate(prompts)]
    driver.run()
    assert checked(driver, prompts, rids, 2) == 4 * (PAGE + 15)
    assert driver.scheduler.gauges().steps == 2
