"""The prepared GPU check runs, in tiny shapes on the CPU, and tells of a stage that fails."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from benchmarks import gpu_check

pytest.importorskip("triton")
ROOT = pathlib.Path(__file__).parents[2]


def run(tmp_path: pathlib.Path, *arguments: str) -> tuple[int, dict, str]:
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--json", str(file), *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    found = json.loads(file.read_text()) if file.exists() else {}
    return ran.returncode, found, ran.stdout + ran.stderr


def test_every_stage_runs_in_tiny_shapes(tmp_path: pathlib.Path) -> None:
    status, found, said = run(tmp_path, "--tiny")
    assert status == 0, said[-4000:]
    assert found["failed"] == []
    stages = {"rates", "kernels", "attention", "decode", "prefill", "shared prefix", "no waiting"}
    assert set(found["variants"]) == {"plain_ms", "fp8_ms", "window_ms", "compiled_ms"}
    assert found["shared prefix"]["once_graphs"] > 0
    assert stages | {"host", "workloads"} <= set(found)
    assert found["kernels"]["rms_norm"] < 1e-4
    assert found["attention"]["once_error"] < 1e-4
    assert all(value >= 0 for name in stages for value in found[name].values())


class TwoStages:
    is_tiny = True

    def stages(self):
        return {"broken": lambda: {"x": 1 / 0}, "whole": lambda: {"x": 2.0}}


def test_a_stage_that_fails_is_told_and_the_rest_go_on(capsys) -> None:
    written = []
    assert not gpu_check.run(TwoStages(), written.append, ())
    assert [sorted(report) for report in written] == [
        ["broken", "failed", "tiny", "torch"],
        ["broken", "failed", "tiny", "torch", "whole"],
    ]
    assert written[-1]["failed"] == ["broken"]
    assert written[-1]["broken"] == {"error": "ZeroDivisionError: division by zero"}
    assert written[-1]["whole"] == {"x": 2.0}
    assert "FAILED" in capsys.readouterr().out
    assert gpu_check.run(TwoStages(), written.append, ("whole",))


def test_it_says_what_it_would_measure(capsys) -> None:
    assert gpu_check.main(["--list"]) == 0
    said = capsys.readouterr().out
    for name, method in gpu_check.STAGES.items():
        about = " ".join(getattr(gpu_check.Check, method).__doc__.split())
        assert f"{name:>14}  {about}" in said
    assert "msgspec  about 220 KiB" in said
