"""The storm and the soak of benchmarks/ on a small model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_300_streams_with_leavers_aborts_and_poison(tiny_model) -> None:
    """NOLEAK, no 500, every stream ends, metrics are the sum of usages, memory does not grow."""
    command = [sys.executable, "-m", "benchmarks.storm", "--model", str(tiny_model)]
    ran = subprocess.run(
        [*command, "--seconds", "60"], capture_output=True, text=True, timeout=280, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr[-2000:]
    assert "calls in all" in ran.stdout


@pytest.mark.slow
def test_a_steady_load_keeps_a_server_at_its_size(tiny_model, tmp_path) -> None:
    """The soak of benchmarks/soak.py, a minute of it; the cache is full after seconds."""
    command = [sys.executable, "-m", "benchmarks.soak", "--model", str(tiny_model)]
    command += ["--seconds", "60", "--kv-tokens", "8192", "--json", str(tmp_path / "soak.json")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-2000:]
    told = json.loads((tmp_path / "soak.json").read_text())
    assert told["steps"] > 100
    assert told["samples"][-1]["cached"] > 4096
