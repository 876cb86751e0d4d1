"""Every row of specs.py compiles for GPUs that are not here, within their limits.

In the gate each row is compiled for one architecture, all three taken in turn; the nightly run
compiles every row for every one. Triton's cache keeps the results, so that a second run is quick.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

pytest.importorskip("triton", reason="Triton is built for Linux on x86-64")

from radixserve.kernels import specs
from radixserve.kernels.triton.compile import SHARED_LIMITS, Report, compile_launch

MOST_REGISTERS = 255
PROCESSES = 2
SMALL_STACK = 128  # bytes of a thread, where spilling is no matter


table = functools.cache(specs.all_specs)


def report_of(order: tuple[int, int]) -> Report:
    """order: row of the table, architecture."""
    row, arch = order
    return compile_launch(table()[row].build(arch), arch)


def check(orders: Iterable[tuple[int, int]]) -> None:
    orders = list(orders)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        reports = list(pool.map(report_of, orders, chunksize=1))
    faults = []
    for (row, arch), report in zip(orders, reports):
        spec = table()[row]
        is_right = (
            report.registers <= MOST_REGISTERS
            and report.stack <= (0 if spec.is_hot else SMALL_STACK)
            and report.shared <= SHARED_LIMITS[arch]
            and report.has_tensor_cores == spec.has_products
        )
        if not is_right:
            faults.append(f"sm_{arch}, {spec.name}: {report}")
    assert not faults, "\n".join(faults)


@pytest.mark.timeout(900)
def test_each_row_compiles_for_one_of_the_architectures() -> None:
    turns = specs.ARCHITECTURES
    check((row, turns[row % len(turns)]) for row in range(len(table())))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_each_row_compiles_for_every_architecture() -> None:
    check((row, arch) for row in range(len(table())) for arch in specs.ARCHITECTURES)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_sample_of_the_full_product_compiles() -> None:
    """One combination of attention's options in 23 (a prime, so that every value comes up)."""
    wanted = list(specs.product(specs.ATTENTION))[::23]
    for at, options in enumerate(wanted):
        arch = specs.ARCHITECTURES[at % 3]
        spec = specs.attention_spec(options)
        report = compile_launch(spec.build(arch), arch)
        assert report.shared <= SHARED_LIMITS[arch], spec.name
        assert report.has_tensor_cores == spec.has_products, spec.name


def test_the_table_covers_every_pair_of_options() -> None:
    rows = specs.pairwise(specs.ATTENTION)
    names = list(specs.ATTENTION)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            met = {(row[first], row[second]) for row in rows}
            every = {(a, b) for a in specs.ATTENTION[first] for b in specs.ATTENTION[second]}
            impossible = {
                (a, b)
                for a, b in every
                if {first: a, second: b}.items() >= {"dtype": torch.float32, "is_fp8": True}.items()
            }
            assert met == every - impossible


def test_the_table_is_small_and_has_every_operation() -> None:
    assert len(table()) <= 80
    assert {spec.op for spec in table()} == {
        "attend_decode",
        "attend_extend",
        "merge",
        "store_kv",
        "copy_kv",
        "rms_norm",
        "silu_mul",
        "gelu_mul",
        "sample",
        "apply_mask",
    }
    assert len({spec.name for spec in table()}) == len(table())


def test_the_report_tells_tensor_cores_apart() -> None:
    plain = {name: values[0] for name, values in specs.ATTENTION.items()}
    for dtype, has_products in ((torch.bfloat16, True), (torch.float32, False)):
        spec = specs.attention_spec({**plain, "dtype": dtype})
        assert compile_launch(spec.build(90), 90).has_tensor_cores == has_products
