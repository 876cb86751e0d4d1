"""Loading the native library, its paths and its threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

from radixserve.kernels.cpu import library, ops
from radixserve.kernels.cpu.library import Library
from radixserve.kernels.cpu.packed import pack

LOAD = """
import logging, sys
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
from radixserve.kernels.cpu import library
library.load(); library.load()
"""


def start_up_log(isa: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        env=os.environ | {"RADIXSERVE_ISA": isa},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_environment_chooses_the_path_and_one_line_says_so() -> None:
    if library.load() is None:
        pytest.skip("the native library is not built")
    assert start_up_log("plain") == ["kernels: native plain"]
    assert start_up_log("off") == ["kernels: torch (RADIXSERVE_ISA=off)"]
    unknown = "kernels: torch (this machine or build has no native path 'mmx')"
    assert start_up_log("mmx") == [unknown]


def test_an_unknown_path_changes_nothing(native: Library) -> None:
    before = native.isa
    with pytest.raises(ValueError, match="mmx"):
        native.use("mmx")
    assert native.isa == before


def test_the_number_of_threads_changes_no_bit(native: Library) -> None:
    x, weight = torch.randn(600, 70), pack(torch.randn(300, 70))
    results = []
    for threads in (1, 2, 5):
        native.set_threads(threads)
        results.append(ops.linear(native, x, weight))
    native.set_threads(2)
    assert all(torch.equal(result, results[0]) for result in results)


def test_callers_from_many_threads_do_not_mix(native: Library) -> None:
    x, weight = torch.randn(4, 64), pack(torch.randn(512, 64))
    expected = ops.linear(native, x, weight)
    wrong: list[int] = []

    def call(name: int) -> None:
        for _ in range(50):
            if not torch.equal(ops.linear(native, x, weight), expected):
                wrong.append(name)

    callers = [threading.Thread(target=call, args=(name,)) for name in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []
