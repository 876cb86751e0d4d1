"""The account of a step: totals that can be worked out by hand."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks import roofline
from benchmarks.roofline import Machine, Model


def test_llama_3_8b_has_its_weights() -> None:
    embedding = 128256 * 4096
    norms = 65 * 4096
    assert Model().weight_bytes == 2 * (8030261248 - embedding - norms)


def test_a_decode_step_of_one_row_is_its_weights_and_little_more() -> None:
    model, machine = Model(), Machine()
    step = roofline.step(model, 1, 1, roofline.attend_decode(model, 1, 2048))
    floor = model.weight_bytes / machine.bandwidth
    assert floor < roofline.total(step, machine) < 1.03 * floor
    assert {cost.bound(machine) for cost in step} == {"memory"}


def test_a_long_prefill_is_its_products() -> None:
    model, machine = Model(), Machine()
    step = roofline.step(model, 8192, 1, roofline.attend_extend(model, 8192))
    flops = 2 * 8192 * (model.weight_bytes / 2 - 4096 * 128256)
    flops += 32 * 4 * 8192 * 8193 / 2 * 4096
    assert roofline.total(step, machine) == pytest.approx(flops / machine.rate, rel=0.1)
    bounds = {cost.name: cost.bound(machine) for cost in step}
    assert bounds["attend_extend"] == bounds["gate_up"] == "compute"
    assert bounds["rms_norm"] == "memory"


def test_a_shared_prefix_read_once_is_read_once_for_each_tile() -> None:
    model = Model()
    once = roofline.attend_shared(model, 256, 4096, 0)
    parts = roofline.query_bytes(model, 256) + roofline.part_bytes(model, 512)
    assert once.moved - parts == roofline.kv_bytes(model, 8 * 4096)
    assert once.flops == roofline.attend_decode(model, 256, 4096).flops


def test_the_constants_are_those_of_the_kernels() -> None:
    decode = pytest.importorskip("radixserve.kernels.triton.attend_decode")
    for rows in (1, 16, 64, 256):
        splits = decode.choose_splits(rows, 8, 2048, roofline.PROCESSORS)
        cost = roofline.attend_decode(Model(), rows, 2048)
        plain = roofline.kv_bytes(Model(), rows * 2048) + roofline.query_bytes(Model(), rows)
        parts = roofline.part_bytes(Model(), rows * splits) if splits > 1 else 0
        assert cost.moved == plain + parts


def test_it_prints_and_writes(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "out.json"
    roofline.main(["--quick", "--json", str(file)])
    shown = capsys.readouterr().out
    values = json.loads(file.read_text())
    assert "attend_shared" in shown
    assert values["shared_speedup"] > 3
    assert values["prefill_8192.ms"] > values["decode_64.ms"] > values["weights_ms"] > 3
