"""Log-probabilities and ranking: exact, nested in k (P07), in blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixserve.sampling import logprobs
from radixserve.sampling.logprobs import score_tokens, token_logprobs
from radixserve.sampling.ranking import rank


def logits_of(n: int, vocab: int, seed: int = 0) -> torch.Tensor:
    """Coarse values, so that the border of any k cuts through equal ones."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, vocab, generator=random).mul(3).round()


@given(
    n=st.integers(1, 4),
    vocab=st.integers(1, 400),
    k=st.integers(1, 60),
    levels=st.sampled_from([1, 2, 10]),
    seed=st.integers(0, 2**16),
)
def test_rank_is_a_stable_sort(n: int, vocab: int, k: int, levels: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    rows = torch.randint(-levels, levels, (n, vocab), generator=random).float()
    k = min(k, vocab)
    values, ids = rank(rows, k)
    expected = torch.argsort(rows, dim=1, descending=True, stable=True)[:, :k]
    assert ids.tolist() == expected.tolist()
    assert values.tolist() == rows.gather(1, expected).tolist()


def test_p07_lists_are_nested_distinct_and_equal_a_full_softmax() -> None:
    logits = logits_of(6, 5000)
    targets = np.arange(6, dtype=np.int32) * 7
    full = torch.log_softmax(logits.double(), -1)
    widest = token_logprobs(logits, targets, 20)
    for k in (1, 4, 5, 20):
        found = token_logprobs(logits, targets, k)
        assert found.top_ids.shape == found.top.shape == (6, k)
        assert all(len(set(row)) == k for row in found.top_ids.tolist())
        assert (found.top_ids == widest.top_ids[:, :k]).all()
        assert (found.top == widest.top[:, :k]).all()
        assert (found.chosen == widest.chosen).all()
    best = full.gather(1, torch.from_numpy(widest.top_ids.astype(np.int64)))
    np.testing.assert_allclose(widest.top, best, atol=1e-5)
    np.testing.assert_allclose(widest.chosen, full[range(6), targets], atol=1e-5)
    assert (np.diff(widest.top) <= 0).all()


def test_no_best_tokens_are_listed_when_none_are_asked_for() -> None:
    found = token_logprobs(logits_of(3, 50), np.zeros(3, np.int32), 0)
    assert found.top_ids.shape == found.top.shape == (3, 0)
    assert found.chosen.dtype == np.float32


def test_more_than_the_vocabulary_gives_all_of_it() -> None:
    found = token_logprobs(logits_of(2, 9), np.zeros(2, np.int32), 20, valid_ids=7)
    assert [sorted(row) for row in found.top_ids.tolist()] == [list(range(7))] * 2


@pytest.mark.parametrize("n", [1, 127, 128, 300])
def test_scores_in_blocks_are_the_scores_of_the_whole(n: int) -> None:
    random = torch.Generator().manual_seed(n)
    hidden = torch.randn(n, 16, generator=random)
    head = torch.randn(90, 16, generator=random)
    targets = np.arange(n, dtype=np.int32) % 90
    largest = 0

    def to_logits(states: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, len(states))
        return states @ head.T

    found = score_tokens(hidden, to_logits, targets, top=3, valid_ids=80)
    whole = token_logprobs(hidden @ head.T, targets, 3, valid_ids=80)
    np.testing.assert_allclose(found.chosen, whole.chosen, atol=1e-5)
    np.testing.assert_allclose(found.top, whole.top, atol=1e-5)
    assert (found.top_ids == whole.top_ids).all()
    assert largest == min(n, logprobs.SCORE_BLOCK)


def test_scores_name_the_log_probability_of_each_next_token() -> None:
    hidden = torch.tensor([[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]])
    found = score_tokens(hidden, lambda states: states, np.array([2, 0], np.int32), top=1)
    expected = torch.log_softmax(hidden, -1)
    assert found.chosen.tolist() == [expected[0, 2], expected[1, 0]]
    assert found.top_ids.tolist() == [[2], [0]]


def test_named_ids_stand_behind_the_best():
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(1))
    targets = np.array([1, 2, 3], np.int32)
    wanted = torch.log_softmax(logits, -1).numpy()
    for top in (0, 2):
        found = token_logprobs(logits, targets, top, 18, (7, 0, 7))
        assert found.top_ids[:, top:].tolist() == [[7, 0, 7]] * 3
        np.testing.assert_allclose(found.top[:, top:], wanted[:, [7, 0, 7]], rtol=1e-6)
        plain = token_logprobs(logits, targets, top, 18)
        np.testing.assert_array_equal(found.top_ids[:, :top], plain.top_ids)
        np.testing.assert_array_equal(found.chosen, plain.chosen)
