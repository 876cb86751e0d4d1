"""Native sampling against the torch sampler and the reference kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve.kernels import reference
from radixserve.kernels.cpu.library import Library
from radixserve.plan import Opened
from radixserve.sampling.batch import SamplingBatch
from radixserve.sampling.logprobs import token_logprobs
from radixserve.sampling.random import uniforms
from radixserve.sampling.sampler import sample
from radixserve.wire.params import SamplingParams

CPU = torch.device("cpu")
NO_IDS = np.zeros(0, np.int32)
BORDER = 1e-6
keep_library = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def batch_of(
    vocab: int, valid: int, requests: list[SamplingParams], native: Library | None,
    stops: tuple[int, ...] = (), logprobs: int | None = None,
) -> SamplingBatch:  # fmt: skip
    batch = SamplingBatch(len(requests), vocab, CPU, valid, native)
    for slot, params in enumerate(requests):
        batch.open(Opened(slot, params, NO_IDS, NO_IDS, stops, logprobs))
    return batch


def is_near_a_border(logits: torch.Tensor, params: SamplingParams, uniform: float) -> bool:
    """Whether float32 may decide otherwise than exact arithmetic: at the draw, or at a filter."""
    if params.greedy:
        return False

    def probs(top_p: float, min_p: float) -> torch.Tensor:
        return reference.filtered_probs(logits, params.temperature, params.top_k, top_p, min_p)

    exact = probs(params.top_p, params.min_p)
    if float((exact.cumsum(0) - uniform).abs().min()) < BORDER:
        return True
    sizes = {
        int((probs(params.top_p * a if params.top_p < 1 else 1.0, params.min_p * b) > 0).sum())
        for a in (1 - BORDER, 1 + BORDER)
        for b in (1 - BORDER, 1 + BORDER)
    }
    return len(sizes) > 1


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, int, list[SamplingParams], np.ndarray | None]:
    torch.manual_seed(draw(st.integers(0, 2**31)))
    valid = draw(st.sampled_from([1, 2, 31, 33, 127, 128, 130, 1000, 5000]))
    vocab = valid + draw(st.sampled_from([0, 3, 64]))
    rows = draw(st.integers(1, 4))
    logits = torch.randn(rows, vocab) * draw(st.sampled_from([0.0, 0.01, 1.0, 5.0, 30.0]))
    if draw(st.booleans()):
        logits = (logits * 2).round() / 2  # ties
    requests = [
        SamplingParams(
            temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 1.7])),
            top_k=draw(st.sampled_from([0, 0, 1, 2, 5, 50, 400])),
            top_p=draw(st.sampled_from([1.0, 1.0, 0.95, 0.5, 1e-6])),
            min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 0.9])),
            seed=draw(st.integers(0, 2**62)),
        )
        for _ in range(rows)
    ]
    kind = draw(st.sampled_from(["none", "bool", "bits"]))
    if kind == "none":
        return logits, valid, requests, None
    legal = torch.rand(rows, valid).numpy() < draw(st.sampled_from([0.02, 0.5, 0.99]))
    legal[:, int(torch.randint(valid, ()))] = True
    if kind == "bool":
        return logits, valid, requests, legal
    padded = np.zeros((rows, -(-valid // 32) * 32), np.bool_)
    padded[:, :valid] = legal
    return logits, valid, requests, np.packbits(padded, axis=1, bitorder="little").view(np.int32)


@keep_library
@given(case=cases(), first=st.integers(0, 10**6))
def test_the_same_tokens_as_torch(
    native: Library,
    case: tuple[torch.Tensor, int, list[SamplingParams], np.ndarray | None],
    first: int,
) -> None:
    logits, valid, requests, mask = case
    rows, vocab = logits.shape
    slots = np.arange(rows, dtype=np.int32)
    places = slots + first
    got, _ = sample(logits, slots, places, batch_of(vocab, valid, requests, native), mask)
    wanted, _ = sample(logits, slots, places, batch_of(vocab, valid, requests, None), mask)
    usable = logits[:, :valid].clone()
    if mask is not None:
        legal = mask
        if mask.dtype != np.bool_:
            legal = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little", count=valid) == 1
        usable.masked_fill_(~torch.from_numpy(legal), float("-inf"))
    for row in np.flatnonzero(got != wanted):
        uniform = float(
            uniforms(np.array([requests[row].seed], np.uint64), places[row : row + 1])[0]
        )
        assert is_near_a_border(usable[row], requests[row], uniform), (row, got, wanted)
    for row in range(rows):  # the same alone
        part = None if mask is None else mask[row : row + 1]
        alone = batch_of(vocab, valid, [requests[row]], native)
        one, _ = sample(logits[row : row + 1], slots[:1], places[row : row + 1], alone, part)
        assert one[0] == got[row]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_without_a_finite_best_are_named(
    native: Library, value: float, temperature: float
) -> None:
    logits = torch.randn(3, 300)
    logits[1] = value if value < 0 else logits[1]
    logits[1, 200] = value
    requests = [SamplingParams(temperature=temperature, seed=1)] * 3
    batch = batch_of(300, 300, requests, native)
    slots = np.arange(3, dtype=np.int32)
    with pytest.raises(ValueError, match=r"rows \[1\] have no finite best logit"):
        sample(logits, slots, slots, batch)


def test_a_masked_nan_is_not_looked_at(native: Library) -> None:
    logits = torch.zeros(1, 40)
    logits[0, 7], logits[0, 9] = float("nan"), 1.0
    mask = np.ones((1, 40), np.bool_)
    mask[0, 7] = False
    batch = batch_of(40, 40, [SamplingParams(temperature=0.0)], native)
    zero = np.zeros(1, np.int32)
    assert sample(logits, zero, zero, batch, mask)[0].tolist() == [9]


def test_stop_ids_stay_legal_where_the_mask_leaves_nothing_else(native: Library) -> None:
    mask = np.zeros((2, 40), np.bool_)
    mask[0, 3], mask[1, [3, 5]] = True, True
    request = SamplingParams(temperature=0.0, min_new_tokens=4)
    batch = batch_of(40, 40, [request] * 2, native, stops=(3,))
    slots = np.arange(2, dtype=np.int32)
    logits = torch.arange(80.0).view(2, 40).flip(1)
    assert sample(logits, slots, 0 * slots, batch, mask)[0].tolist() == [3, 5]


@pytest.mark.parametrize("top", [0, 3])
def test_logprobs_are_torchs(native: Library, top: int) -> None:
    torch.manual_seed(3)
    logits = torch.randn(5, 1003) * 8
    requests = [SamplingParams(temperature=1.0, seed=k) for k in range(5)]
    batch = batch_of(1003, 1000, requests, native, logprobs=top)
    slots = np.arange(5, dtype=np.int32)
    ids, found = sample(logits, slots, slots, batch)
    wanted = token_logprobs(logits, ids, top, 1000)
    for row in range(5):
        np.testing.assert_allclose(found[row].chosen[0], wanted.chosen[row], atol=2e-6)
        assert found[row].top_ids.tolist() == wanted.top_ids[row : row + 1].tolist()
