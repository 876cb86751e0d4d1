"""The storm of benchmarks/storm.py on a small model."""

from __future__ import annotations

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
