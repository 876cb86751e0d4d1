"""What a row gives back does not depend on what else of the step is asked for.

Asking every row for all its hidden states leaves nothing out of the last layer: the results must be
those of a step that asks for less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.attention.cpu import CpuAttention
from radixserve.executor.device_executor import DeviceExecutor
from radixserve.executor.executor import Executor
from radixserve.executor.kv_pool import KvPool
from radixserve.executor.outputs import wanted_tokens
from radixserve.models.decoder import Decoder, attention_shape
from radixserve.plan import (
    HiddenRange,
    Opened,
    Output,
    PageId,
    ScoreRange,
    SlotId,
    StepPlan,
    StepResult,
)
from radixserve.sampling.batch import SamplingBatch
from radixserve.wire.params import SamplingParams
from tests import tiny
from tests.fake_device import FakeDevice, reading
from tests.staged_attention import StagedAttention

CPU = torch.device("cpu")
VOCAB, PAGE, TABLE, SLOTS = 32, 4, 6, 5
SCORES, MEAN, LAST = "scores", "mean", "last"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("tiny")
    return tiny.load(tiny.make_model(folder, vocab=VOCAB, num_hidden_layers=2, eos_token_id=0))


@dataclass
class Row:
    """A chunk of a prompt from `position` on, of `length` tokens. asks: beside a sample."""

    position: int
    length: int
    samples: bool
    asks: str
    first: int  # token of the row from which scores and sums begin


@st.composite
def rows_of(draw: st.DrawFn) -> list[Row]:
    rows = []
    for _ in range(draw(st.integers(1, SLOTS))):
        length = draw(st.sampled_from([1, 2, 5, 9]))
        asks = draw(st.sampled_from(["", "", SCORES, MEAN, LAST]))
        first = draw(st.integers(0, length - 1))
        samples = asks not in (MEAN, LAST) and draw(st.booleans())
        rows.append(Row(draw(st.integers(0, 12)), length, samples, asks, first))
    return rows


def plan_of(rows: list[Row]) -> StepPlan:
    """Row i has slot i and pages of its own."""
    lengths = np.array([row.length for row in rows], np.int32)
    positions = np.array([row.position for row in rows], np.int32)
    tables = [
        range(TABLE * slot, TABLE * slot + -(-(row.position + row.length) // PAGE))
        for slot, row in enumerate(rows)
    ]
    ids = np.array(tiny.prompt(int(lengths.sum()), VOCAB), np.int32)
    params = SamplingParams(max_new_tokens=9, temperature=0.8, seed=3)
    empty = np.zeros(0, np.int32)
    outputs = [
        Output.HIDDEN if row.asks in (MEAN, LAST) else Output.SAMPLE if row.samples else Output.NONE
        for row in rows
    ]
    scores, hidden = [], []
    for i, row in enumerate(rows):
        if row.asks == SCORES:
            targets = np.arange(1, 1 + row.length - row.first, dtype=np.int32)
            scores.append(ScoreRange(i, row.position + row.first, targets, 2))
        if row.asks in (MEAN, LAST):
            first = 0 if row.asks == MEAN else row.length - 1
            hidden.append(HiddenRange(i, row.position + first))
    return StepPlan(
        step=0,
        slots=np.arange(len(rows), dtype=np.int32),
        positions=positions,
        lengths=lengths,
        ids=ids,
        from_last=np.zeros(len(rows), np.bool_),
        outputs=np.array(outputs, np.int8),
        page_indptr=np.cumsum([0, *map(len, tables)]).astype(np.int32),
        page_indices=np.array([page for table in tables for page in table], np.int32),
        samples=positions + lengths,
        opened=tuple(
            Opened(SlotId(i), params, ids[:1], empty, (), 2 if i % 2 else None)
            for i in range(len(rows))
        ),
        scores=tuple(scores),
        hidden=tuple(hidden),
    )


def run(model: Decoder, plan: StepPlan, on_device: bool) -> StepResult:
    shape = attention_shape(model.spec)
    pool = KvPool(shape, TABLE * SLOTS + 1, PAGE, torch.float32, CPU)
    random = torch.Generator().manual_seed(4)
    for cache in (*pool.k, *pool.v):
        cache.copy_(torch.randn(cache.shape, generator=random))
    sampling = SamplingBatch(SLOTS, VOCAB, CPU)
    executor: Any
    if on_device:
        attention = StagedAttention(shape, PAGE, pool.k, pool.v)
        scratch = PageId(TABLE * SLOTS)
        executor = DeviceExecutor(
            model, pool, attention, sampling, FakeDevice(), scratch=scratch, uses_graphs=True
        )
    else:
        backend = CpuAttention(shape, PAGE, pool.k, pool.v)
        executor = Executor(model, pool, backend, sampling, SLOTS, CPU)
    step = executor.launch(plan)
    step.sample()
    with reading():
        result: StepResult = step.result()
    return result


@settings(max_examples=25)
@given(rows=rows_of(), on_device=st.booleans())
def test_rows_give_the_same_whatever_else_is_asked_for(
    model: Decoder, rows: list[Row], on_device: bool
) -> None:
    plan = plan_of(rows)
    every = tuple(HiddenRange(i, row.position) for i, row in enumerate(rows))
    got = run(model, plan, on_device)
    whole = run(model, replace(plan, hidden=(*plan.hidden, *every)), on_device)
    assert got.rows.tolist() == whole.rows.tolist() == [i for i, r in enumerate(rows) if r.samples]
    assert got.ids.tolist() == whole.ids.tolist()
    assert got.logprobs.keys() == whole.logprobs.keys()
    assert len(got.scores) == len(whole.scores)
    pairs = [(got.logprobs[row], whole.logprobs[row]) for row in got.logprobs]
    for one, other in (*pairs, *zip(got.scores, whole.scores)):
        assert one.top_ids.tolist() == other.top_ids.tolist()
        np.testing.assert_allclose(one.chosen, other.chosen, atol=1e-4)
        np.testing.assert_allclose(one.top, other.top, atol=1e-4)
    assert len(got.hidden) == len(plan.hidden)
    for ours, theirs in zip(got.hidden, whole.hidden):
        np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_the_wanted_tokens_are_the_last_of_each_row() -> None:
    lengths = np.array([3, 1, 2], np.int32)
    found = wanted_tokens(lengths, np.array([1, 1, 0], np.int32))
    assert found is not None
    assert found.tolist() == [2, 3]
    assert wanted_tokens(lengths, lengths) is None


def test_only_what_is_asked_for_is_computed_to_the_end(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 9 + 5 tokens the last layer's feed-forward takes the two that are sampled."""
    taken = []
    real = type(model.layers[-1].feed_forward).__call__

    def noted(self: Any, hidden: torch.Tensor, operations: Any) -> torch.Tensor:
        taken.append(len(hidden))
        return real(self, hidden, operations)

    monkeypatch.setattr(type(model.layers[-1].feed_forward), "__call__", noted)
    run(model, plan_of([Row(0, 9, True, "", 0), Row(3, 5, True, "", 0)]), on_device=False)
    run(model, plan_of([Row(0, 9, False, "", 0)]), on_device=False)
    assert taken == [14, 2, 9]
