"""Decode steps with shared prefixes as graphs, on a fake device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is built for Linux on x86-64")

from radixserve.executor.device_executor import DeviceExecutor
from radixserve.executor.graphs import GraphStore, array_room
from radixserve.executor.kv_pool import KvPool
from radixserve.kernels.triton.work import cut
from radixserve.models.decoder import Decoder, attention_shape
from radixserve.plan import PageId, SharedGroup, StepPlan
from radixserve.sampling.batch import SamplingBatch
from tests import tiny
from tests.engine_driver import EngineDriver
from tests.fake_device import FakeDevice
from tests.staged_work import StagedWork

CPU = torch.device("cpu")
VOCAB, PAGE, PAGES, SLOTS = 32, 8, 64, 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("tiny")
    return tiny.load(tiny.make_model(folder, vocab=VOCAB, num_hidden_layers=2, eos_token_id=0))


class Watched:
    """An executor that notes which decode steps with groups were replayed and which ran eagerly."""

    def __init__(self, model: Decoder, device: FakeDevice, uses_graphs: bool = True) -> None:
        shape = attention_shape(model.spec)
        pool = KvPool(shape, PAGES + 1, PAGE, torch.float32, CPU)
        self.executor = DeviceExecutor(
            model,
            pool,
            StagedWork(shape, PAGE, pool.k, pool.v),
            SamplingBatch(SLOTS, VOCAB, CPU),
            device,
            scratch=PageId(PAGES),
            uses_graphs=uses_graphs,
        )
        self.device = device
        self.replayed = self.eager = 0

    def launch(self, plan: StepPlan) -> Any:
        before = self.device.replays
        step = self.executor.launch(plan)
        if plan.shared and (plan.lengths == 1).all():
            self.replayed += self.device.replays - before
            self.eager += self.device.replays == before
        return step


def serve(executor: Any, prompts: list[list[int]], n: int, shares: bool) -> list[list[int]]:
    driver = EngineDriver(
        pages=PAGES, page_size=PAGE, vocab=VOCAB, overlap=True, executor=executor,
        max_running=SLOTS, token_budget=64, chunk=32, shared_attention=shares, stop_ids=(0,),
    )  # fmt: skip
    params = {"temperature": 0.0, "ignore_eos": True}
    rids = [driver.submit(prompt, n, params=params) for prompt in prompts]
    driver.run()
    driver.no_leak()
    return [driver.output(rid) for rid in rids]


def tree(branches: list[tuple[int, int]]) -> list[list[int]]:
    """Prompts on a trunk of 72 tokens: how much of a second trunk each has, and of its own."""
    trunk, second = tiny.prompt(72, VOCAB, seed=1), tiny.prompt(64, VOCAB, seed=2)
    return [
        [*trunk, *second[:shared], *tiny.prompt(own, VOCAB, seed=9 + which)]
        for which, (shared, own) in enumerate(branches)
    ]


@settings(max_examples=3, deadline=None)
@given(
    branches=st.lists(
        st.tuples(st.sampled_from([0, 64]), st.integers(1, 9)), min_size=2, max_size=SLOTS
    )
)
def test_shared_steps_are_replayed_and_right(
    model: Decoder, branches: list[tuple[int, int]]
) -> None:
    prompts = tree(branches)
    wanted = serve(Watched(model, FakeDevice(), uses_graphs=False), prompts, 8, shares=False)
    watched = Watched(model, FakeDevice())
    assert serve(watched, prompts, 8, shares=True) == wanted
    assert watched.replayed >= 5
    assert watched.eager == 0


def test_one_graph_serves_many_shared_steps(model: Decoder) -> None:
    watched = Watched(model, FakeDevice())
    serve(watched, tree([(0, 3), (0, 4), (64, 2), (64, 5)]), 12, shares=True)
    assert watched.replayed >= 8
    assert len(watched.executor.graphs) <= 4


def test_a_step_with_too_many_numbers_runs_eagerly(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tree([(0, 3), (64, 4), (64, 2)])
    wanted = serve(Watched(model, FakeDevice()), prompts, 6, shares=True)
    monkeypatch.setattr("radixserve.executor.graphs.NUMBERS_MORE", -40)
    watched = Watched(model, FakeDevice())
    assert serve(watched, prompts, 6, shares=True) == wanted
    assert watched.eager >= 3


def test_graphs_are_not_without_number() -> None:
    store = GraphStore(FakeDevice(), (1, 2), most=2)
    for size in (1, 2):
        assert store.has(size, "a")
        store.get(size, "a", lambda: torch.zeros(1))
    assert store.has(2, "a")
    assert not store.has(2, "b")
    assert array_room(256) >= 4 * 256, "as many parts as 256 rows on a prefix of 4k have"


def test_padded_work_is_the_same_work() -> None:
    positions, lengths = np.array([9, 10, 4], np.int32), np.ones(3, np.int32)
    indptr = np.array([0, 3, 6, 8], np.int32)
    groups = (SharedGroup((0, 1), 0, 2),)
    work = cut(positions, lengths, indptr, groups, page_size=4, queries=4, few=1)
    assert (work.items, work.large, work.part_count) == (4, 1, 4)
    wide = work.padded(5, least=4)
    assert (wide.items, wide.large, wide.part_count) == (8, 4, 4)
    assert wide.counts.tolist() == [2, 0, 0, 0, 1, 1, 1, 0]
    for name in ("firsts", "tables", "begins", "ends", "clears"):
        got = getattr(wide, name)
        assert [*got[:1], *got[4:7]] == getattr(work, name).tolist()
        assert not got[1:4].any()
    assert wide.merged.tolist() == [0, 1, 0, 0, 0]
    assert wide.merge_indptr.tolist() == [0, 2, 4, 4, 4, 4]
