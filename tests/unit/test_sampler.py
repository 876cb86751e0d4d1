"""The sampler against the reference kernel and against cases P01, P02, P04, P05, L09."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixserve.kernels import reference
from radixserve.plan import Opened
from radixserve.sampling.batch import SamplingBatch
from radixserve.sampling.random import uniforms
from radixserve.sampling.sampler import sample
from radixserve.wire.params import SamplingParams

CPU = torch.device("cpu")
NO_IDS = np.zeros(0, np.int32)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def opened(
    slot: int,
    params: SamplingParams,
    prompt: np.ndarray = NO_IDS,
    output: np.ndarray = NO_IDS,
    stop_ids: tuple[int, ...] = (),
) -> Opened:
    return Opened(slot, params, prompt, output, stop_ids)


def batch_of(vocab: int, *requests: SamplingParams, valid_ids: int | None = None) -> SamplingBatch:
    batch = SamplingBatch(len(requests), vocab, CPU, valid_ids)
    for slot, params in enumerate(requests):
        batch.open(opened(slot, params))
    return batch


def draws(logits: torch.Tensor, n: int, mask: np.ndarray | None = None, **params: float) -> Counter:
    """How often each id is drawn by n rows with the same logits, one seed, n positions."""
    batch = batch_of(len(logits), SamplingParams(seed=11, **params))
    masks = None if mask is None else np.repeat(mask[None], n, axis=0)
    slots, positions = np.zeros(n, np.int32), np.arange(n, dtype=np.int32)
    ids, _ = sample(logits.expand(n, -1), slots, positions, batch, masks)
    return Counter(ids.tolist())


def assert_distributed(counts: Counter, probs: torch.Tensor) -> None:
    """Chi-square at p 0.001 over the ids that are expected often enough."""
    n = counts.total()
    assert all(probs[token] > 0 for token in counts)
    often = [i for i in range(len(probs)) if probs[i] * n >= 5]
    score = sum((counts[i] - n * float(probs[i])) ** 2 / (n * float(probs[i])) for i in often)
    freedom = max(1, len(often) - 1)
    assert score < freedom + 3.1 * math.sqrt(2 * freedom) + 8


# P01


P01 = torch.tensor([0.05, 0.15, 0.35, 0.45]).log()
ALL_LEGAL = np.ones(4, np.bool_)
PACKED = i32(0b1111)


@pytest.mark.parametrize("mask", [None, ALL_LEGAL, PACKED], ids=["free", "bool", "packed"])
@pytest.mark.parametrize(
    ("filters", "survivors"),
    [
        ({"top_k": 2, "top_p": 0.5}, {3}),
        ({"top_k": 2, "min_p": 0.9}, {3}),
        ({"min_p": 0.9}, {3}),
        ({"top_k": 2}, {2, 3}),
        ({"top_p": 0.5}, {2, 3}),
        ({"top_p": 0.5, "min_p": 0.5}, {2, 3}),
        ({"min_p": 0.3}, {1, 2, 3}),
        ({}, {0, 1, 2, 3}),
    ],
)
def test_p01_filters_apply_in_order_on_every_path(
    filters: dict[str, float], survivors: set[int], mask: np.ndarray | None
) -> None:
    counts = draws(P01, 10_000, mask, **filters)
    assert set(counts) == survivors
    probs = reference.filtered_probs(
        P01, 1.0, int(filters.get("top_k", 0)), filters.get("top_p", 1.0), filters.get("min_p", 0.0)
    )
    assert_distributed(counts, probs)


@pytest.mark.parametrize("vocab", [4, 300])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_p01_equal_logits_leave_exactly_k_the_lowest_ids(k: int, vocab: int) -> None:
    assert set(draws(torch.zeros(vocab), 2000, top_k=k)) == set(range(k))


def test_p01_equal_logits_under_top_k_then_top_p() -> None:
    assert set(draws(torch.zeros(4), 2000, top_k=2, top_p=0.5)) == {0}
    assert set(draws(torch.zeros(4), 2000, top_k=4, top_p=0.5)) == {0, 1}
    assert set(draws(torch.zeros(400), 2000, top_p=0.5)) <= set(range(200))


# P02


@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 1, "top_p": 0.8, "temperature": 0.01},
        {"top_p": 0.0},
        {"top_p": 1e-9},
        {"min_p": 1.0},
        {"top_k": 40, "top_p": 0.0, "min_p": 1.0},
        {"temperature": 1e-6},
        {"temperature": 0.0, "top_p": 0.0, "min_p": 1.0},
    ],
)
@pytest.mark.parametrize("is_masked", [False, True])
def test_p02_the_best_legal_token_always_stays(params: dict[str, float], is_masked: bool) -> None:
    logits = torch.randn(200, generator=torch.Generator().manual_seed(4))
    mask = None
    expected = int(logits.argmax())
    if is_masked:
        expected = 77
        logits[77] = logits.max() - 18.4  # probability about 1e-8
        mask = np.arange(200) == 77
    assert set(draws(logits, 50, mask, **params)) == {expected}


@pytest.mark.parametrize("top_k", [0, -1, 4, 10_000])
def test_p02_top_k_off_or_past_the_vocabulary_filters_nothing(top_k: int) -> None:
    assert draws(P01, 3000, top_k=top_k) == draws(P01, 3000)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_legal_token_is_an_error_that_names_it(temperature: float) -> None:
    params = SamplingParams(seed=1, temperature=temperature)
    batch = batch_of(4, params, params)
    mask = np.array([[True] * 4, [False] * 4])
    with pytest.raises(ValueError, match=r"rows \[1\] have no finite best logit"):
        sample(torch.zeros(2, 4), i32(0, 1), i32(0, 0), batch, mask)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"top_k": 3}, {"top_p": 0.5}])
def test_broken_logits_are_an_error_not_a_token(value: float, params: dict[str, float]) -> None:
    logits = torch.zeros(3, 300)
    logits[1, 250] = value
    batch = batch_of(300, *[SamplingParams(seed=1, **params) for _ in range(3)])
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        sample(logits, i32(0, 1, 2), i32(0, 0, 0), batch)


# P04


def stream(params: SamplingParams, logits: torch.Tensor, company: list[SamplingParams]) -> list:
    """16 tokens of `params`, the last slot, beside the company; logits: [16, vocab]."""
    batch = batch_of(logits.shape[1], *company, params)
    ids = []
    for position, row in enumerate(logits):
        slots = np.arange(len(company) + 1, dtype=np.int32)
        noise = torch.randn(len(company), logits.shape[1], generator=torch.Generator())
        rows = torch.cat((noise, row[None]))
        samples = np.full(len(slots), position, np.int32)
        ids.append(int(sample(rows, slots, samples, batch)[0][-1]))
    return ids


def test_p04_a_seeded_request_draws_the_same_in_any_company() -> None:
    logits = torch.randn(16, 1000, generator=torch.Generator().manual_seed(1))
    one = SamplingParams(seed=42, temperature=0.8)
    others = [
        SamplingParams(seed=7, top_p=0.9),
        one,
        SamplingParams(temperature=0.0, logit_bias={3: 5.0}),
        SamplingParams(seed=42, top_k=20, frequency_penalty=1.0),
    ]
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    alone = stream(one, logits, [])
    assert len(set(alone)) > 8
    for company in ([], others[:1], others[1:2], others):
        assert stream(one, logits, company) == alone
    assert stream(SamplingParams(seed=43, temperature=0.8), logits, []) != alone
    assert torch.equal(torch.random.get_rng_state(), before)


kinds = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 3, 60, 200, 600]),
    top_p=st.sampled_from([0.0, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    logit_bias=st.sampled_from([{}, {5: 2.0, 9: -100.0}]),
    seed=st.integers(0, 2**63 - 1),
)


@given(
    requests=st.lists(kinds, min_size=2, max_size=6),
    vocab=st.sampled_from([40, 701, 1024]),
    coarse=st.booleans(),
    seed=st.integers(0, 2**16),
    is_masked=st.booleans(),
)
def test_a_row_gives_the_same_id_alone_and_in_company(
    requests: list[SamplingParams], vocab: int, coarse: bool, seed: int, is_masked: bool
) -> None:
    logits = rows_of(len(requests), vocab, coarse, seed)
    random = np.random.default_rng(seed)
    mask = random.random((len(requests), vocab)) < 0.5 if is_masked else None
    samples = random.integers(0, 1000, len(requests)).astype(np.int32)
    prompt = random.integers(0, vocab, 20).astype(np.int32)

    def drawn(rows: list[int]) -> list[int]:
        batch = SamplingBatch(len(requests), vocab, CPU)
        for slot in rows:
            batch.open(opened(slot, requests[slot], prompt))
        chosen = None if mask is None else mask[rows]
        return sample(logits[rows], i32(*rows), samples[rows], batch, chosen)[0].tolist()

    together = drawn(list(range(len(requests))))
    backwards = drawn(list(range(len(requests)))[::-1])[::-1]
    alone = [drawn([row])[0] for row in range(len(requests))]
    assert alone == together == backwards


def rows_of(n: int, vocab: int, coarse: bool, seed: int) -> torch.Tensor:
    """Random logits; coarse ones have many ties, as those of a bfloat16 model."""
    logits = torch.randn(n, vocab, generator=torch.Generator().manual_seed(seed)) * 3
    return (logits * 2).round() / 2 if coarse else logits


@pytest.mark.parametrize("params", [{}, {"top_p": 0.95}, {"min_p": 0.01}, {"top_k": 50}])
def test_company_does_not_matter_in_a_large_vocabulary(params: dict[str, float]) -> None:
    torch.set_num_threads(2)
    vocab, n = 49_152, 6
    logits = rows_of(n, vocab, False, 2)
    batch = batch_of(vocab, *[SamplingParams(seed=i, **params) for i in range(n)])
    samples = np.arange(n, dtype=np.int32)
    together = sample(logits, np.arange(n, dtype=np.int32), samples, batch)[0].tolist()
    alone = [
        int(sample(logits[i : i + 1], i32(i), samples[i : i + 1], batch)[0][0]) for i in range(n)
    ]
    assert alone == together


# The whole against the reference


@given(
    request=kinds.map(
        lambda p: SamplingParams(
            seed=p.seed, temperature=p.temperature, top_k=p.top_k, top_p=p.top_p, min_p=p.min_p
        )
    ),
    vocab=st.sampled_from([1, 5, 129, 1000]),
    coarse=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_draws_invert_the_reference_distribution(
    request: SamplingParams, vocab: int, coarse: bool, seed: int
) -> None:
    logits = rows_of(1, vocab, coarse, seed)[0]
    batch = batch_of(vocab, request)
    positions = np.arange(40, dtype=np.int32)
    slots = np.zeros(40, np.int32)
    ids = sample(logits.expand(40, -1), slots, positions, batch)[0]
    if request.greedy:
        assert set(ids.tolist()) == {int(logits.argmax())}
        return
    probs = reference.filtered_probs(
        logits, request.temperature, request.top_k, request.top_p, request.min_p
    ).numpy()
    cumulated = probs.cumsum()
    uniform = uniforms(np.full(40, request.seed, np.uint64), positions)
    for token, u in zip(ids, uniform):
        assert probs[token] > 0
        assert cumulated[token] - probs[token] - 1e-5 <= u <= cumulated[token] + 1e-5


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0, "top_p": 0.8},
        {"top_k": 30, "top_p": 0.7},
        {"min_p": 0.1, "top_k": 25},
        {"temperature": 2.0, "top_p": 0.95, "min_p": 0.05},
    ],
)
def test_many_draws_follow_the_reference_distribution(params: dict[str, float]) -> None:
    logits = rows_of(1, 400, False, 9)[0]
    probs = reference.filtered_probs(
        logits,
        params.get("temperature", 1.0),
        int(params.get("top_k", 0)),
        params.get("top_p", 1.0),
        params.get("min_p", 0.0),
    )
    assert_distributed(draws(logits, 20_000, **params), probs)


# L09


@pytest.mark.parametrize("params", [{}, {"top_k": 60}, {"top_p": 0.99}, {"min_p": 1e-6}])
@pytest.mark.parametrize("is_masked", [False, True])
def test_l09_padded_rows_of_the_vocabulary_are_never_drawn(
    params: dict[str, float], is_masked: bool
) -> None:
    valid, vocab, n = 1000, 1100, 2000
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(0))
    logits[valid:] = 30.0
    batch = SamplingBatch(1, vocab, CPU, valid)
    batch.open(opened(0, SamplingParams(seed=5, temperature=5.0, **params)))
    mask = np.ones((n, vocab), np.bool_) if is_masked else None
    ids, _ = sample(
        logits.expand(n, -1), np.zeros(n, np.int32), np.arange(n, dtype=np.int32), batch, mask
    )
    assert ids.max() < valid
    assert len(set(ids.tolist())) > 20


def test_l09_greedy_and_log_probabilities_stay_inside_the_vocabulary() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 9.0]])
    batch = SamplingBatch(1, 4, CPU, valid_ids=3)
    params = SamplingParams(temperature=0.0, logit_bias={2: 1.5})
    batch.open(Opened(0, params, NO_IDS, NO_IDS, logprobs=20))
    ids, logprobs = sample(logits, i32(0), i32(0), batch)
    assert ids.tolist() == [2]
    assert logprobs[0].top_ids.tolist() == [[1, 2, 0]]


# Log-probabilities of what was drawn


def test_log_probabilities_are_of_the_raw_logits() -> None:
    logits = rows_of(3, 50, False, 6)
    batch = SamplingBatch(3, 50, CPU)
    hot = SamplingParams(
        seed=3, temperature=4.0, top_k=5, logit_bias={7: 90.0}, repetition_penalty=2.0
    )
    batch.open(Opened(0, hot, i32(7, 8), NO_IDS, logprobs=2))
    batch.open(Opened(1, SamplingParams(temperature=0.0), NO_IDS, NO_IDS))
    batch.open(Opened(2, SamplingParams(temperature=0.0), NO_IDS, NO_IDS, logprobs=0))
    before = logits.clone()
    ids, logprobs = sample(logits, i32(0, 1, 2), i32(2, 0, 0), batch)
    assert torch.equal(logits, before)
    assert ids[0] == 7
    expected = torch.log_softmax(logits, -1)
    assert set(logprobs) == {0, 2}
    assert logprobs[0].chosen.tolist() == [expected[0, 7]]
    assert logprobs[0].top.tolist() == [expected[0].topk(2).values.tolist()]
    assert logprobs[0].top_ids.tolist() == [expected[0].topk(2).indices.tolist()]
    assert logprobs[2].chosen.tolist() == [expected[2].max()]
    assert logprobs[2].top_ids.shape == (1, 0)
