"""What the soak says of its samples; the server under it is tests/e2e/test_storm.py's."""

from __future__ import annotations

from benchmarks.soak import LINES, Load, Sample, told
from benchmarks.storm import growth
from benchmarks.storm_client import Talk

MIB = 2**20


def test_growth_is_that_of_the_last_half() -> None:
    assert growth([100 * MIB] * 8) == 0
    assert growth([0, 50 * MIB, *[100 * MIB] * 2]) == 0  # it may fill its cache first
    assert growth([0, 0, 0, 0, 10 * MIB, 10 * MIB, 12 * MIB, 14 * MIB]) == 3
    assert growth([7]) == 0


def test_each_side_is_told_apart(capsys) -> None:
    samples = [
        Sample(float(i), 30 * i, 200 * MIB, (300 + (i if i > 80 else 0)) * MIB, 60 * MIB, 16 * i)
        for i in range(100)
    ]
    numbers = told(samples, lost=16)
    assert numbers["front_growth_mib"] == 0
    assert numbers["engine_growth_mib"] > 20
    assert numbers["workers_growth_mib"] == 0
    peaks = [numbers[f"{side}_peak_mib"] for side in ("front", "engine", "workers")]
    assert peaks == [200, 399, 60]
    assert (numbers["start_mib"], numbers["peak_mib"]) == (560, 659)
    assert (numbers["steps"], numbers["seconds"], numbers["lost_tokens"]) == (2970, 99, 16)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= LINES + 6
    assert lines[-3].split() == ["99", "2970", "200.0", "399.0", "60.0", "1584"]


def test_prompts_share_their_beginnings_and_then_part() -> None:
    load = Load(Talk("127.0.0.1", 1), 8, seed=3)
    prompts = [load._prompt() for _ in range(60)]
    assert len({prompt[:400] for prompt in prompts}) == 8
    assert len(set(prompts)) == 60
    assert load._poison not in load.kinds
