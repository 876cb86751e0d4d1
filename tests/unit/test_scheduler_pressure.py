"""A pool too small for what its requests share: what is computed again, and that nobody starves."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.cache.prefix import PrefixCache
from radixserve.config.schema import ScheduleConfig
from radixserve.scheduler.finish import FinishCheck
from radixserve.scheduler.pages import MOST_HELD, RequestPages
from radixserve.scheduler.policy import note_passed, order
from radixserve.scheduler.queue import WaitingQueue
from radixserve.scheduler.request import Request
from radixserve.wire.messages import Generate
from radixserve.wire.params import SamplingParams
from tests.engine_driver import EngineDriver

PARAMS = SamplingParams(max_new_tokens=4, seed=0)


def request_of(arrival: int, prompt: list[int], priority: int = 0) -> Request:
    key = np.asarray(prompt, np.int32).tobytes()
    message = Generate(rid=f"r{arrival}", prompt=key, params=PARAMS, priority=priority)
    return Request(message, arrival, 4, FinishCheck(PARAMS, (), ()))


def ids_of(n: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1000), k=n)


def closed_loop(driver: EngineDriver, prompts: list[list[int]], at_once: int) -> list[str]:
    """Each answer is followed by the next prompt, a step later; returns the rids."""
    rids: list[str] = []
    ended = heard = 0
    while len(rids) < len(prompts) or not driver.idle:
        ended, heard = heard, sum(hasattr(event, "reason") for event in driver.channel.events)
        while len(rids) < len(prompts) and len(rids) - ended < at_once:
            rids.append(driver.submit(prompts[len(rids)], max_new=8))
        driver.turn()
    return rids


def groups(number: int, each: int, shared: int, own: int, seed: int) -> list[list[int]]:
    prefixes = [ids_of(shared, 1000 + 100 * seed + g) for g in range(number)]
    prompts = [
        prefix + ids_of(own, 5000 + 100 * g + k)
        for g, prefix in enumerate(prefixes)
        for k in range(each)
    ]
    random.Random(seed).shuffle(prompts)
    return prompts


def test_a_closed_loop_in_a_small_pool_computes_few_prefixes_again() -> None:
    """Eight prefixes of which the pool holds three: each run computes six of them again,
    and ten where only what is cached counts."""
    again = 0
    for seed in range(4):
        driver = EngineDriver(
            pages=128, page_size=4, vocab=1000, max_running=32, token_budget=512, chunk=128
        )
        rids = closed_loop(driver, groups(8, 8, 128, 8, seed), at_once=16)
        computed = sum(driver.finished(rid).computed_tokens for rid in rids)
        again += computed - 8 * 128 - 64 * 8
        driver.no_leak()
    assert again < 4 * 7.5 * 128


def test_a_deep_queue_computes_each_prefix_once() -> None:
    """Of 24 groups with 8 prompts, all there at once, the pool holds the prefixes of four."""
    driver = EngineDriver(
        pages=100, page_size=4, vocab=1000, max_running=16, token_budget=256, chunk=128
    )
    prompts = groups(24, 8, 64, 4, 0)
    rids = [driver.submit(prompt, max_new=1) for prompt in prompts]
    driver.run(10_000)
    computed = sum(driver.finished(rid).computed_tokens for rid in rids)
    assert computed - 24 * 64 - len(prompts) * 4 <= 0.04 * 24 * 7 * 64
    driver.no_leak()


def test_of_those_with_as_much_cached_the_larger_company_goes_first_where_pages_are_short() -> None:
    a, b = ids_of(40, 1), ids_of(40, 2)
    waiting = [request_of(0, [*a, 1]), request_of(1, [*b, 1]), request_of(2, [*b, 2])]
    for is_short, expected in ((False, ["r0", "r1", "r2"]), (True, ["r1", "r2", "r0"])):
        found = order(waiting, "lpm", 16, lambda r: 0, is_short=is_short)
        assert [request.rid for request in found] == expected
    more = order(waiting, "lpm", 16, lambda r: 5 * (r.rid == "r0"), is_short=True)
    assert more[0].rid == "r0"  # what is cached counts more
    waiting[0].overtaken = 16
    assert order(waiting, "lpm", 16, lambda r: r.arrival, is_short=True)[0].rid == "r0"


def test_only_the_longest_waiting_of_each_class_counts_who_passed_it() -> None:
    waiting = [request_of(k, [k, 1], priority=k // 2) for k in range(4)]
    note_passed(waiting, request_of(9, [1, 1]))
    assert [request.overtaken for request in waiting] == [1, 0, 1, 0]
    note_passed(waiting, request_of(9, [1, 1], priority=1))
    assert [request.overtaken for request in waiting] == [1, 0, 2, 0]
    note_passed(waiting, request_of(1, [1, 1]))
    assert [request.overtaken for request in waiting] == [2, 0, 2, 0]


@given(st.integers(0, 4), st.integers(1, 3), st.randoms(use_true_random=False))
def test_nobody_is_passed_more_often_than_the_bound_says(
    bound: int, rows: int, rng: random.Random
) -> None:
    """At most max_overtakes times for itself and for each that was there before it, and by those
    that are admitted together."""
    cached: dict[str, int] = {}
    queue = WaitingQueue(ScheduleConfig(max_overtakes=bound), lambda r: cached[r.rid])
    passed: dict[int, int] = {}
    before: dict[int, int] = {}
    arrivals = 0
    for _ in range(30):
        for _ in range(rng.randrange(4)):
            request = request_of(arrivals, [1, 2])
            before[arrivals], passed[arrivals] = len(queue), 0
            cached[request.rid] = rng.choice([0, 40, 60, 99])
            queue.arrive(request)
            arrivals += 1
        for request in queue.order(is_short=rng.random() < 0.5)[:rows]:
            queue.admit(request)
            del passed[request.arrival]
            for arrival in passed:
                passed[arrival] += arrival < request.arrival
        for arrival, times in passed.items():
            assert times <= (before[arrival] + 1) * (bound + rows - 1)


def ended(pages: RequestPages, request: Request, running: list[Request]) -> None:
    """It is admitted, computed, and ends."""
    assert pages.take(request, running)
    request.computed = request.known_len
    pages.publish_and_drop(request)


@pytest.mark.parametrize("ends", [1, 2, 10])
def test_who_would_evict_waits_while_others_end_but_not_for_long(ends: int) -> None:
    """Of 16 pages 10 are in use, 4 cached, 2 free."""
    pages = RequestPages(PrefixCache(16, 4, audit=True), 0.0)
    pages.begin_step()
    running = [request_of(0, ids_of(40, 1))]
    assert pages.take(running[0], [])
    ended(pages, request_of(1, ids_of(16, 2)), running)
    evicts, fits = request_of(2, ids_of(20, 3)), request_of(3, [*ids_of(16, 2), 1])
    held = 0
    while True:
        pages.begin_step()
        if pages.take(evicts, running):
            break
        held += 1
        if held < ends:
            ended(pages, fits, running)
    assert held == min(ends, MOST_HELD)


def test_nobody_waits_for_others_to_ask_on_where_nothing_runs_or_pages_are_plenty() -> None:
    for size, is_alone in ((16, True), (64, False)):
        pages = RequestPages(PrefixCache(size, 4, audit=True), 0.0)
        pages.begin_step()
        running = [request_of(0, ids_of(4 if is_alone else 40, 1))]
        assert pages.take(running[0], [])
        ended(pages, request_of(1, ids_of(4 * (size - 11), 2)), running)
        pages.begin_step()
        if is_alone:
            pages.drop(running.pop())
        assert pages.take(request_of(2, ids_of(28, 3)), running)
