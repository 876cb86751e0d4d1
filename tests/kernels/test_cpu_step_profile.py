"""The profile of a step: its stages add up, its floors are what can be worked out by hand."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from benchmarks import step_profile
from benchmarks.step_profile import (
    CONTEXT,
    Rates,
    Rig,
    decode_times,
    floors,
    prefill_times,
    request,
)
from radixserve.config.flags import configure
from radixserve.config.resolve import resolve
from radixserve.kernels.cpu import library
from radixserve.models.spec import read_spec
from radixserve.weights import source
from tests import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tiny.make_model(tmp_path_factory.mktemp("profile"))


@pytest.mark.parametrize("attention", ["native", "cpu"])
def test_the_stages_of_a_step_add_up(folder: pathlib.Path, attention: str) -> None:
    if attention == "native" and library.load() is None:
        pytest.skip("the native library is not built")
    config = resolve(configure(model=str(folder), attention=attention, dtype="float32", threads=1))
    rig, rng = Rig(config, tokens=4 * CONTEXT), np.random.default_rng(0)
    scheduler = rig.scheduler(chunk=64)
    scheduler.handle(request("a", 40, 2, rig.spec.vocab_size, rng))
    for is_masked in (False, True):
        plan, times = rig.step(scheduler, is_masked=is_masked)
        assert plan.rows == 1
        assert ("GEMMs" in times) == (attention == "native")
        assert min(times.values()) > 0.0
        parts = sum(seconds for stage, seconds in times.items() if stage != "all")
        assert parts == pytest.approx(times["all"])
    for times in (decode_times(rig, 2, 3, rng), prefill_times(rig, 70, 2, rng)):
        assert set(times) <= set(step_profile.ORDER)


def test_floors_are_bytes_or_products(folder: pathlib.Path) -> None:
    """Hidden 64, 3 layers, 4 query and 2 KV heads of 16, inner 96, 128 tokens."""
    spec = read_spec(source.resolve(str(folder)))
    weights = 3 * 64 * (2 * 64 + 2 * 32 + 3 * 96)
    slow_memory, slow_products = Rates(bytes=1.0, flops=1e30), Rates(bytes=1e30, flops=1.0)
    assert floors(spec, 4, 2, 2, slow_memory) == {
        "GEMMs": weights * 4,
        "attention": 3 * 2 * 32 * 2 * (CONTEXT + 1) * 4,
        "logits": 128 * 64 * 4,
        "all": pytest.approx(4 * (weights + 3 * 2 * 32 * 2 * (CONTEXT + 1) + 128 * 64)),
    }
    # Of 9 tokens the last layer computes K and V alone.
    multiplied = weights // 3 * (2 * 10 + 1) + 64 * 2 * 32 * 9
    attended = 2 * 64 * (2 * 55 + 10)
    assert floors(spec, 4, 1, 10, slow_products) == {
        "GEMMs": 2 * multiplied,
        "attention": 2 * attended,
        "logits": 2 * 128 * 64,
        "all": pytest.approx(2 * (multiplied + attended + 128 * 64)),
    }
