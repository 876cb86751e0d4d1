"""The simulation of program policies: it ends, it is exact, and a step's cost is the table's."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from benchmarks import program_policy
from benchmarks.agents import KINDS, arrivals
from benchmarks.program_policy import SCENES, SIDES, Scene, Simulation


def test_all_sides_serve_the_same_programs_to_their_end() -> None:
    scene = Scene("small", 2.0, 8192, 4)
    came = {arrival.name for arrival in arrivals(12, 2.0, 3)}
    for side in SIDES:
        times = Simulation(scene, side, arrivals(12, 2.0, 3)).run()
        assert set(times.seconds) == came
        assert 0 < times.mean() <= times.p99()
        assert min(times.seconds.values()) > 0


def test_the_same_seed_gives_the_same_times() -> None:
    first, second = (
        Simulation(SCENES[1], "program", arrivals(8, 2.0, 5)).run().seconds for _ in range(2)
    )
    assert first == second


def test_every_kind_of_program_comes() -> None:
    assert {arrival.kind for arrival in arrivals(60, 1.0, 0)} == set(KINDS)


def test_a_program_alone_takes_its_steps_time() -> None:
    """A single call of p prompt tokens and n output tokens: n steps, the first with the prompt."""
    (single,) = [a for a in arrivals(40, 1.0, 2) if a.kind == "single"][:1]
    (prompt, tokens) = next(single.agent).asks[0]
    (again,) = [a for a in arrivals(40, 1.0, 2) if a.name == single.name]
    times = Simulation(Scene("idle", 1.0, 8192, 4), "lpm", [again]).run()
    step, row, token = program_policy.COST
    chunks = -(-len(prompt) // 512)
    expected = (tokens + chunks - 1) * step + (tokens - 1) * row + len(prompt) * token
    assert times.seconds[single.name] == pytest.approx(expected)


def test_it_prints_and_writes(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "out.json"
    program_policy.main(["--quick", "--programs", "6", "--json", str(file)])
    values = json.loads(file.read_text())
    assert capsys.readouterr().out.count("\nprogram ") == len(SCENES)
    assert values["slots.lpm.mean_ratio"] == 1.0
    assert np.isfinite(list(values.values())).all()
