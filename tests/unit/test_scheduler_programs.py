"""The order of programs: who goes on, who waits, and that nobody waits for ever."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from radixserve.config.schema import ScheduleConfig
from radixserve.scheduler.finish import FinishCheck
from radixserve.scheduler.programs import DECODE_WEIGHT, Programs
from radixserve.scheduler.queue import WaitingQueue
from radixserve.scheduler.request import Request
from radixserve.scheduler.standing import FIRST_LEVEL
from radixserve.wire.messages import Generate, ProgramEnd, ProgramRef
from radixserve.wire.params import SamplingParams
from tests.engine_driver import EngineDriver
from tests.fake_executor import expected

PARAMS = SamplingParams(max_new_tokens=4, seed=0)


class Queue:
    """A WaitingQueue whose cache is a table. cached: tokens that it has of each request."""

    def __init__(self, **config) -> None:
        config = ScheduleConfig(**{"policy": "program", **config})
        self.cached: dict[str, int] = {}
        self.queue = WaitingQueue(config, lambda r: self.cached[r.rid])
        self.arrivals = 0

    def add(
        self, rid: str, program: ProgramRef | None = None, *, cached: int = 0, priority: int = 0
    ) -> Request:
        message = Generate(
            rid=rid,
            prompt=np.zeros(100, np.int32).tobytes(),
            params=PARAMS,
            program=program,
            priority=priority,
        )
        request = Request(message, self.arrivals, 4, FinishCheck(PARAMS, (), ()))
        self.arrivals += 1
        self.cached[rid] = cached
        self.queue.arrive(request)
        return request

    def serve(self, request: Request, computed: int = 0) -> None:
        """Admit it, and let it end when so many tokens were computed for it."""
        self.queue.admit(request)
        request.computed_tokens = computed
        self.queue.ended(request)

    def order(self) -> list[str]:
        return [request.rid for request in self.queue.order()]


def call(program: str, number: int = 0, parent: str = "", siblings: int = 1) -> ProgramRef:
    return ProgramRef(program, str(number), parent, siblings)


def test_what_has_started_goes_on_then_single_calls_then_new_programs() -> None:
    queue = Queue()
    queue.serve(queue.add("a0", call("a")))
    queue.add("new", call("b"))
    queue.add("single")
    queue.add("a1", call("a", 1, "0"), cached=60)
    assert queue.order() == ["a1", "single", "new"]


def test_what_was_evicted_meanwhile_waits_behind_new_programs() -> None:
    queue = Queue()
    queue.serve(queue.add("a0", call("a")))
    queue.add("a1", call("a", 1, "0"), cached=40)
    queue.add("new", call("b"))
    assert queue.order() == ["new", "a1"]


def test_single_calls_and_new_programs_go_by_their_longest_cached_prefix() -> None:
    queue = Queue()
    for rid, cached in (("x", 10), ("y", 30), ("z", 30)):
        queue.add(rid, cached=cached)
        queue.add(f"p{rid}", call(rid), cached=cached)
    assert queue.order() == ["y", "z", "x", "py", "pz", "px"]


def test_of_programs_that_go_on_the_first_goes_first_unless_it_has_had_far_more() -> None:
    queue = Queue()
    served = queue.add("a0", call("a"))
    queue.serve(queue.add("b0", call("b")))
    queue.serve(served, FIRST_LEVEL - 1)
    queue.add("b1", call("b", 1, "0"), cached=90)
    before = queue.add("a1", call("a", 1, "0"), cached=90)
    assert queue.order() == ["a1", "b1"]
    queue.serve(before, 1)
    queue.add("a2", call("a", 2, "1"), cached=90)
    assert queue.order() == ["b1", "a2"]


def test_a_decoded_token_counts_more_than_one_of_a_prompt() -> None:
    programs = Programs(8)
    queue = Queue()
    request = queue.add("a0", call("a"))
    programs.arrived(request)
    request.computed_tokens, request.output = 10, [1, 2]
    programs.left(request)
    assert request.standing is not None
    assert request.standing.service == 10 + 2 * DECODE_WEIGHT


def test_branches_of_a_fork_are_side_by_side_also_where_one_comes_late() -> None:
    queue = Queue()
    queue.serve(queue.add("a0", call("a")), FIRST_LEVEL - 10)
    queue.serve(queue.add("b0", call("b")))
    first = queue.add("a1.0", call("a", 10, "0", 3), cached=99)
    queue.serve(queue.add("a1.1", call("a", 11, "0", 3), cached=99), 100)
    queue.add("b1", call("b", 1, "0"), cached=99)
    queue.add("a1.2", call("a", 12, "0", 3), cached=60)
    assert queue.order() == ["a1.0", "a1.2", "b1"]
    queue.serve(first)
    queue.add("a2", call("a", 2, "10"), cached=99)
    assert queue.order() == ["a1.2", "b1", "a2"]


def test_a_new_program_that_begins_with_a_fork_is_not_split() -> None:
    queue = Queue()
    queue.add("a0", call("a", 0, "", 2), cached=50)
    queue.add("b0", call("b"), cached=50)
    queue.add("a1", call("a", 1, "", 2), cached=20)
    assert queue.order() == ["a0", "a1", "b0"]


def test_priority_stands_above_all() -> None:
    queue = Queue()
    queue.serve(queue.add("a0", call("a")))
    queue.add("a1", call("a", 1, "0"), cached=90)
    queue.add("first", priority=1)
    queue.add("evicted", call("a", 2, "0"), cached=0, priority=-1)
    queue.add("last", priority=-2)
    assert queue.order() == ["first", "a1", "evicted", "last"]


def test_namespaces_have_programs_of_their_own() -> None:
    programs = Programs(8)
    for namespace in ("x", "y"):
        message = Generate(
            rid=namespace, prompt=b"\0" * 4, params=PARAMS, program=call("a"), namespace=namespace
        )
        programs.arrived(Request(message, 0, 4, FinishCheck(PARAMS, (), ())))
    assert len(programs) == 2


def test_programs_that_are_remembered_are_bounded() -> None:
    queue = Queue(max_programs=3)
    waiting = [queue.add(f"w{i}", call(f"w{i}")) for i in range(5)]
    for i in range(10):
        queue.serve(queue.add(f"r{i}", call(f"p{i}")))
    programs = queue.queue.programs
    assert programs is not None
    assert len(programs) == 8  # those that wait and three more
    for request in waiting:
        queue.serve(request)
    assert len(programs) == 3


def test_a_program_that_has_ended_is_forgotten_with_its_last_call() -> None:
    queue = Queue()
    running = queue.add("a0", call("a"))
    queue.queue.program_ended(("", "a"))
    programs = queue.queue.programs
    assert programs is not None
    assert len(programs) == 1
    queue.serve(running)
    assert len(programs) == 0


@given(st.integers(0, 4), st.integers(1, 3), st.randoms(use_true_random=False))
def test_nobody_is_passed_more_often_than_the_bound_says(
    bound: int, rows: int, rng: random.Random
) -> None:
    """Whatever comes, and however much of it is cached: a call is passed by at most
    max_overtakes later ones, and by those that were admitted together with the last of them."""
    queue = Queue(program_overtakes=bound)
    waiting: dict[str, int] = {}
    for _ in range(20):
        for _ in range(rng.randrange(4)):
            rid, program = f"r{queue.arrivals}", rng.choice([None, "a", "b", "c"])
            ref = program and call(program, 0, rng.choice("xy"))
            queue.add(rid, ref, cached=rng.choice([0, 40, 60, 99]))
            waiting[rid] = 0
        for request in queue.queue.order()[:rows]:
            queue.serve(request, rng.choice([0, FIRST_LEVEL]))
            del waiting[request.rid]
            for rid in waiting:
                waiting[rid] += int(rid[1:]) < request.arrival
        assert all(passed <= bound + rows - 1 for passed in waiting.values())


def test_the_engine_serves_programs_and_leaks_nothing() -> None:
    driver = EngineDriver(policy="program", pages=48, max_running=3)
    driver.cache.keep_for_programs(0.5, 10.0)
    prompts: dict[str, list[int]] = {}
    for program in range(6):
        for number in range(3):
            prompt = [program % 5] * 6 + [number] * (3 * number + 1)
            rid = driver.submit(prompt, program=call(f"p{program}", number, str(number - 1)))
            prompts[rid] = prompt
        driver.turn()
    driver.run()
    for rid, prompt in prompts.items():
        assert driver.output(rid) == expected(prompt, 4, 5)
    assert driver.cache.retention.pages
    for program in range(6):
        driver.channel.down.append(driver.encoded(ProgramEnd(f"p{program}")))
    driver.turn()
    assert driver.cache.retention.pages == 0
    driver.no_leak()


def test_what_a_program_left_survives_a_flood_and_lpm_lets_it_go() -> None:
    cached = {}
    for policy in ("program", "lpm"):
        driver = EngineDriver(policy=policy, pages=32, vocab=1000)
        if policy == "program":
            driver.cache.keep_for_programs(0.5, 1000.0)
        first = list(range(40))
        rid = driver.submit(first, program=call("agent"))
        driver.run()
        history = first + driver.output(rid)
        for flood in range(1, 9):
            driver.submit([500 + flood] * 40)
            driver.run()
        again = driver.submit([*history, 7], program=call("agent", 1, "0"))
        driver.run()
        cached[policy] = driver.finished(again).cached_tokens
        driver.no_leak()
    assert cached == {"program": 43, "lpm": 0}
