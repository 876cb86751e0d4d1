"""benchmarks/programs.py as a user starts it, on a small model."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from benchmarks import programs
from benchmarks.program_suite import BRANCHES, LEVELS, WORKLOADS

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_all_sides_do_the_same_work(tiny_model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A random model writes texts that are other tokens when they come back, so the client's later
    prompts may differ from the others'."""
    file = tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks.programs", "--model", str(tiny_model)]
    command += ["--quick", "--only", "skeleton", "--kv-tokens", "16384", "--json", str(file)]
    command += ["--flags", "--dtype float32 --threads 1"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nskeleton ") == 4
    values = json.loads(file.read_text())
    of = {
        side: {name: values[f"skeleton.{side}.{name}"] for name in ("same", *programs.COUNTED)}
        for side in ("client", "interpreted", "compiled", "no_cache")
    }
    assert {each["same"] for each in of.values()} == {1.0}
    assert len({each["generated_tokens"] for each in of.values()}) == 1
    assert of["interpreted"]["prompt_tokens"] == of["compiled"]["prompt_tokens"]
    assert of["no_cache"]["cached_tokens"] == 0 < of["compiled"]["cached_tokens"]
    requests = [values[f"skeleton.{side}.requests"] for side in ("client", "interpreted")]
    assert requests == [14, 14]
    assert values["skeleton.compiled.requests"] == 2


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: each.name)
def test_every_program_can_be_compiled(workload) -> None:
    calls = {"react": 10, "skeleton": 7, "judge": 7, "chat": 4, "retrieval": 1, "extraction": 1}
    calls["tree"] = sum(BRANCHES**level for level in range(LEVELS + 1))
    compiled = workload.program.compile()
    assert sum(map(len, compiled.waves)) == calls[workload.name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--only=nothing"], "nothing"), (["--sides=compiled"], "--sides needs client")],
)
def test_usage_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        programs.parse(arguments)
    assert message in capsys.readouterr().err
