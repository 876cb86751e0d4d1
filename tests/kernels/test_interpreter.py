"""Every Triton kernel against the reference, in a process that runs Triton's interpreter."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("triton")
HERE = pathlib.Path(__file__).parent
LIMIT = 900  # seconds: about one minute of one core's work, on a machine that may be busy


@pytest.mark.timeout(LIMIT + 30)
def test_kernels_are_the_reference_under_the_interpreter() -> None:
    files = sorted(str(path) for path in HERE.glob("test_triton_*.py"))
    # Under coverage the interpreter takes several times as long.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files],
        cwd=HERE.parent.parent,
        env={**plain, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert "skipped" not in ran.stdout
