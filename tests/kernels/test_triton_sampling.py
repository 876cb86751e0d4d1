"""Triton sampling against the CPU sampler and the reference: the same ids, to the uniform's bit."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.kernels import reference
from radixserve.kernels.triton.sample import Draws, sample
from radixserve.sampling.random import uniforms

SEEDS = np.array([0, 1, 2**63 + 5, 2**64 - 1, 12345678901234567], np.uint64)


@dataclass
class Settings:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    is_greedy: bool = False
    seed: int = 7
    position: int = 3


def draw(logits: torch.Tensor, rows: list[Settings], valid_ids: int | None = None) -> list[int]:
    def column(name: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([getattr(row, name) for row in rows], dtype=dtype)

    seeds = np.array([row.seed for row in rows], np.uint64).view(np.int64)
    draws = Draws(
        temperature=column("temperature", torch.float32),
        top_k=column("top_k", torch.int32),
        top_p=column("top_p", torch.float64),
        min_p=column("min_p", torch.float64),
        seeds=torch.from_numpy(seeds),
        positions=column("position", torch.int64),
        is_greedy=column("is_greedy", torch.bool),
    )
    before = logits.clone()
    ids = sample(logits, draws, valid_ids).tolist()
    assert torch.equal(logits.nan_to_num(9.0), before.nan_to_num(9.0))
    return ids


def exact(logits: torch.Tensor, row: Settings) -> int:
    uniform = float(uniforms(np.array([row.seed], np.uint64), np.array([row.position]))[0])
    temperature = 0.0 if row.is_greedy else row.temperature
    return reference.sample(logits, uniform, temperature, row.top_k, row.top_p, row.min_p)


def near_border(logits: torch.Tensor, row: Settings) -> bool:
    """The uniform lies so near to the border of two ids that either is right."""
    uniform = float(uniforms(np.array([row.seed], np.uint64), np.array([row.position]))[0])
    args = row.temperature, row.top_k, row.top_p, row.min_p
    cumulated = reference.filtered_probs(logits, *args).cumsum(0)
    return bool((cumulated - uniform).abs().min() < 1e-6)


def check(logits: torch.Tensor, rows: list[Settings]) -> None:
    got = draw(logits, rows)
    for one, row, token in zip(logits, rows, got):
        assert token == exact(one, row) or near_border(one, row), (row, token)


def test_uniforms_have_the_bits_of_the_cpu() -> None:
    """Over equal logits the id is floor(uniform * vocab), which tells all positions apart."""
    rows = [
        Settings(seed=int(seed), position=position)
        for seed in SEEDS
        for position in (0, 2**32 - 1, 2**32 + 7)
    ]
    vocab = 4096
    ids = draw(torch.zeros(len(rows), vocab), rows)
    seeds = np.array([row.seed for row in rows], np.uint64)
    wanted = uniforms(seeds, np.array([row.position for row in rows])) * vocab
    assert ids == np.floor(wanted).astype(int).tolist()


@pytest.mark.parametrize("vocab", [1, 2, 1023, 1024, 1025, 3000])
def test_greedy_takes_the_first_of_the_best(vocab: int) -> None:
    torch.manual_seed(vocab)
    logits = torch.randn(3, vocab)
    logits[0, :] = 0.0
    logits[1, vocab // 2 :] = 9.0
    logits[2, vocab - 1] = 99.0
    greedy = [Settings(is_greedy=True)] * 3
    assert draw(logits, greedy) == [0, vocab // 2, vocab - 1]


@pytest.mark.parametrize(
    "row",
    [
        Settings(),
        Settings(temperature=0.01),
        Settings(temperature=5.0),
        Settings(top_k=1),
        Settings(top_k=40),
        Settings(top_k=5000),
        Settings(top_p=0.9),
        Settings(top_p=1e-9),
        Settings(top_p=0.999999),
        Settings(min_p=0.1),
        Settings(min_p=1.0),
        Settings(top_k=50, top_p=0.8, min_p=0.05, temperature=0.7),
    ],
    ids=str,
)
def test_each_filter(row: Settings) -> None:
    torch.manual_seed(0)
    rows = [Settings(**{**vars(row), "seed": seed}) for seed in range(2)]
    check(torch.randn(2, 1500) * 3, rows)


@dataclass
class Case:
    logits: torch.Tensor
    rows: list[Settings] = field(default_factory=list)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Few distinct logits, so that ties lie at every border; some masked. No top_p is the exact sum
    of some ties, where rounding would decide."""
    vocab = draw(st.sampled_from([1, 5, 40, 1030]))
    seed = draw(st.integers(0, 2**32))
    random = torch.Generator().manual_seed(seed)
    spread = draw(st.sampled_from([0.5, 2.0, 30.0]))
    logits = torch.randint(-3, 4, (3, vocab), generator=random).float() / 3 * spread
    if draw(st.booleans()) and vocab > 1:
        hidden = torch.rand(3, vocab, generator=random) < 0.5
        hidden[:, 0] = False
        logits = logits.masked_fill(hidden, float("-inf"))
    rows = [
        Settings(
            temperature=draw(st.sampled_from([0.3, 1.0, 1.7])),
            top_k=draw(st.sampled_from([0, 1, 3, 7, 100])),
            top_p=draw(st.sampled_from([1.0, 0.937, 0.513, 0.11])),
            min_p=draw(st.sampled_from([0.0, 0.0, 0.2])),
            is_greedy=draw(st.sampled_from([False, False, False, True])),
            seed=draw(st.integers(0, 2**64 - 1)),
            position=draw(st.integers(0, 2**33)),
        )
        for _ in range(3)
    ]
    return Case(logits, rows)


@settings(max_examples=8)
@given(case=cases())
def test_ties_and_masks_at_every_border(case: Case) -> None:
    check(case.logits, case.rows)


def test_rows_without_a_finite_best_are_named() -> None:
    logits = torch.zeros(5, 1500)
    logits[0, 1400] = torch.nan
    logits[1] = -torch.inf
    logits[2, 3] = torch.inf
    logits[3, :1499] = -torch.inf
    rows = [Settings(is_greedy=i % 2 == 0) for i in range(5)]
    assert draw(logits, rows) == [-1, -1, -1, 1499, 0]


def test_padding_past_the_valid_ids_is_never_drawn() -> None:
    logits = torch.zeros(2, 1100)
    logits[:, 1025:] = 50.0
    rows = [Settings(seed=3), Settings(is_greedy=True)]
    ids = draw(logits, rows, valid_ids=1025)
    assert max(ids) < 1025
    assert ids[0] == exact(logits[0, :1025], rows[0])


def test_a_row_is_the_same_in_any_company() -> None:
    torch.manual_seed(1)
    logits = torch.randn(3, 1100) * 2
    rows = [Settings(top_p=0.9, top_k=k, seed=k) for k in (0, 3, 40)]
    together = draw(logits, rows)
    assert [draw(logits[i : i + 1], rows[i : i + 1])[0] for i in range(3)] == together
