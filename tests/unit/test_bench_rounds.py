"""Rounds, verdicts, the table and the flat names."""

from __future__ import annotations

import zlib

import pytest

from benchmarks.serving.client import Endpoint
from benchmarks.serving.report import flat, table
from benchmarks.serving.rounds import Plan, Result, Side, measure
from benchmarks.serving.runner import Run
from benchmarks.serving.workloads import WORKLOADS
from tests.bench_server import Peer, serving


def words(text: str) -> list[int]:
    return [zlib.crc32(word.encode()) for word in text.split()]


def ran(makespan: float, itl: float | None = 0.01, cached: int | None = 30) -> Run:
    return Run(makespan, 100, 0.5, 0.9, itl, cached, makespan / 50)


def result(**spans: list[float]) -> Result:
    return Result("W1", 1000, 40, {side: [ran(s) for s in these] for side, these in spans.items()})


def test_sides_take_turns_with_equal_prompts_that_are_new_each_round():
    with serving(Peer()) as a, serving(Peer()) as b:
        sides = [Side(Endpoint(n, "127.0.0.1", p.port, model="m")) for n, p in zip("ab", (a, b))]
        measured = measure("W2", WORKLOADS["W2"], sides, Plan("s", 2, True, 10), words)
    calls = len(a.bodies) // 3
    assert sorted(str(body) for body in a.bodies) == sorted(str(body) for body in b.bodies)
    rounds = [
        {tuple(body["prompt"]) for body in a.bodies[i * calls : (i + 1) * calls]} for i in range(3)
    ]
    assert [len(prompts) for prompts in rounds] == [calls] * 3
    prefixes = [{prompt[:768] for prompt in prompts} for prompts in rounds]
    assert [len(prefix) for prefix in prefixes] == [1] * 3
    assert len(set.union(*prefixes)) == 3
    assert {side: len(runs) for side, runs in measured.runs.items()} == {"a": 2, "b": 2}
    assert measured.prompt_tokens == calls * 816
    assert measured.shared >= (calls - 1) * 768


def test_speed_is_the_median_over_pairs_of_rounds():
    measured = result(a=[1.0, 2.0, 1.0], b=[2.0, 2.0, 5.0])
    assert measured.speed("a", "b") == 2.0
    assert measured.speed("b", "a") == 0.5
    assert measured.middle("b", lambda one: one.makespan) == 2.0


def test_a_number_that_a_round_lacks_has_no_median():
    measured = Result("W2", 1, 0, {"a": [ran(1.0), ran(1.0, itl=None)]})
    assert measured.middle("a", lambda one: one.itl) is None


@pytest.mark.parametrize(
    ("a", "b", "ok"),
    [
        ([1.0, 1.0, 1.14], [2.0, 2.2, 2.1], True),
        ([1.0, 1.0, 1.16], [2.0, 2.2, 2.1], False),
        ([1.0, 1.0, 1.0], [2.0, 2.4, 2.1], False),
        ([1.0], [2.0], False),
    ],
)
def test_sides_that_drift_are_inconclusive(a: list[float], b: list[float], ok: bool):
    measured = result(a=a, b=b)
    assert measured.is_conclusive("a", "b") is ok
    assert ("inconclusive" not in table([measured])) is ok
    assert flat([measured])["W1.verdict.a_to_b"] == ("ok" if ok else "inconclusive")


def test_flat_names():
    values = flat([result(a=[1.0, 1.0], b=[3.0, 3.0], c=[2.0, 2.0])])
    assert values["W1.speed.a_to_b"] == 3.0
    assert values["W1.speed.a_to_c"] == 2.0
    assert values["W1.a.makespan_s"] == 1.0
    assert values["W1.b.tokens_per_s"] == round(100 / 3, 6)
    assert values["W1.c.cached_tokens"] == 30
    assert values["W1.sharable_tokens"] == 40
    assert all(isinstance(value, float | int | str) for value in values.values())


def test_the_table_has_a_line_for_each_side_and_all_columns():
    lines = table([result(a=[1.0, 1.0], b=[3.0, 3.0])]).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert len({len(line) for line in lines}) == 1
    assert "W1 shared system prompt" in lines[2]
    assert "3.00x" in lines[3]
    assert "30 of 40" in lines[3]


def test_what_a_server_does_not_tell_is_a_dash_or_a_question_mark():
    runs = [ran(1.0, itl=None, cached=None)] * 2
    line = table([Result("W2", 10, 5, {"a": runs})]).splitlines()[-1]
    assert "? of 5" in line
    assert "| -" in line
    assert "W2.a.itl_s" not in flat([Result("W2", 10, 5, {"a": runs})])
