"""Every row of specs.py compiles for GPUs that are not here, within their limits.

In the gate each row is compiled for one architecture, all three taken in turn; the nightly run
compiles every row for every one, and one in 23 of the full product of attention's options, another
each night: 15,360 combinations would take a core about four hours, so 23 nights take them all.
Triton's cache keeps the results, so that a second run is quick.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import multiprocessing
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

pytest.importorskip("triton", reason="Triton is built for Linux on x86-64")

from radixserve.kernels import specs
from radixserve.kernels.triton.compile import SHARED_LIMITS, Report, compile_launch

MOST_REGISTERS = 255
NIGHTS = 23
PROCESSES = 2
SMALL_STACK = 128  # bytes of a thread, where spilling is no matter


table = functools.cache(specs.all_specs)


def report_of(order: tuple[int, int]) -> Report:
    """order: row of the table, architecture."""
    row, arch = order
    return compile_launch(table()[row].build(arch), arch)


def pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn"))


def check(orders: Iterable[tuple[int, int]]) -> None:
    orders = list(orders)
    with pool() as workers:
        reports = list(workers.map(report_of, orders, chunksize=1))
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
def test_tonights_share_of_the_full_product_compiles() -> None:
    night = datetime.date.today().toordinal()
    with pool() as workers:
        faults = [said for said in workers.map(product_fault, share_of(night), chunksize=4) if said]
    assert not faults, "\n".join(faults)


def share_of(night: int) -> list[tuple[int, int]]:
    """What of the product is compiled that night: places in it, with the architecture for each."""
    count = sum(1 for _ in specs.product(specs.ATTENTION))
    turns = specs.ARCHITECTURES
    return [
        (place, turns[(place // NIGHTS + night // NIGHTS) % len(turns)])
        for place in range(night % NIGHTS, count, NIGHTS)
    ]


def product_fault(order: tuple[int, int]) -> str | None:
    place, arch = order
    options = next(itertools.islice(specs.product(specs.ATTENTION), place, None))
    spec = specs.attention_spec(options)
    report = compile_launch(spec.build(arch), arch)
    if report.shared > SHARED_LIMITS[arch] or report.has_tensor_cores != spec.has_products:
        return f"sm_{arch}, {spec.name}: {report}"
    return None


def test_the_nights_take_the_full_product() -> None:
    first = 738_000
    count = sum(1 for _ in specs.product(specs.ATTENTION))
    taken = [place for night in range(first, first + NIGHTS) for place, _ in share_of(night)]
    assert sorted(taken) == list(range(count))
    # And over three rounds each for every architecture.
    round_of = [
        {arch for place, arch in share_of(first + n * NIGHTS) if place < NIGHTS} for n in range(3)
    ]
    assert set.union(*round_of) == set(specs.ARCHITECTURES)


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


def test_the_table_has_the_models_windows_and_fp8_pools() -> None:
    names = [spec.name for spec in table() if spec.name.startswith("Mistral")]
    for kernel in ("decode", "extend 128"):
        for is_fp8 in (False, True):
            wanted = f"kernel {kernel}, dtype bfloat16, head_dim 128, page_size 16, group 4"
            (found,) = [n for n in names if wanted in n and f"is_fp8 {is_fp8}" in n]
            assert "window 4096" in found


def test_the_report_tells_tensor_cores_apart() -> None:
    plain = {name: values[0] for name, values in specs.ATTENTION.items()}
    for dtype, has_products in ((torch.bfloat16, True), (torch.float32, False)):
        spec = specs.attention_spec({**plain, "dtype": dtype})
        assert compile_launch(spec.build(90), 90).has_tensor_cores == has_products
