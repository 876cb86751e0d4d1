"""Sampling state of slots: penalties (P05), bias, stop ids, masks, slots used again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixserve.plan import Opened
from radixserve.sampling.batch import SamplingBatch
from radixserve.sampling.edits import edited, unpacked
from radixserve.sampling.sampler import sample
from radixserve.wire.params import SamplingParams

CPU = torch.device("cpu")
NO_IDS = np.zeros(0, np.int32)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def greedy(**params: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, **params)


def one(
    params: SamplingParams,
    prompt: np.ndarray = NO_IDS,
    output: np.ndarray = NO_IDS,
    stop_ids: tuple[int, ...] = (),
    vocab: int = 8,
) -> SamplingBatch:
    batch = SamplingBatch(1, vocab, CPU)
    batch.open(Opened(0, params, prompt, output, stop_ids))
    return batch


def shaped(
    batch: SamplingBatch, logits: torch.Tensor, sample_at: int = 0, mask: np.ndarray | None = None
) -> list[float]:
    return edited(logits[None], i32(0), i32(sample_at), batch, mask)[0].tolist()


def draw(batch: SamplingBatch, logits: torch.Tensor, samples: np.ndarray) -> list[int]:
    """A step over slots 0 .. k - 1, as the executor makes it."""
    ids = sample(logits, np.arange(len(logits), dtype=np.int32), samples, batch)[0].tolist()
    for slot, token in enumerate(ids):
        batch.append(slot, token)
    return ids


def test_p05_frequency_and_presence_count_the_output_alone() -> None:
    params = greedy(frequency_penalty=0.25, presence_penalty=0.5)
    batch = one(params, prompt=i32(4, 4), output=i32(5, 5, 5))
    assert shaped(batch, torch.ones(8)) == [1, 1, 1, 1, 1, 1 - 0.5 - 0.75, 1, 1]


def test_p05_repetition_covers_prompt_and_output_and_both_signs() -> None:
    logits = torch.tensor([3.0, 3.0, -3.0, -3.0])
    batch = one(greedy(repetition_penalty=2.0), prompt=i32(1, 1), output=i32(2), vocab=4)
    assert shaped(batch, logits) == [3.0, 1.5, -6.0, -3.0]


def test_p05_penalties_follow_the_tokens_as_they_are_drawn() -> None:
    batch = one(greedy(frequency_penalty=1.0, repetition_penalty=2.0), prompt=i32(0))
    logits = torch.tensor([[0.5, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0]])
    ids = [draw(batch, logits, i32(n))[0] for n in range(1, 6)]
    # 4 / 2 - 1 = 1 after the first draw of 1; 3 / 2 - 1 = 0.5; 2 / 2 - 1 = 0; then 1 with 1 and 4
    assert ids == [1, 2, 3, 1, 4]


def test_p05_penalties_after_a_retraction_are_those_before() -> None:
    params = greedy(frequency_penalty=0.3, presence_penalty=-0.2, repetition_penalty=1.4)
    drawn = [3, 3, 70, 5, 3, *range(8, 90)]
    going = one(params, prompt=i32(1, 2), vocab=100)
    for token in drawn:
        going.append(0, token)
    again = one(params, prompt=i32(1, 2), output=i32(*drawn), vocab=100)
    logits = torch.randn(100, generator=torch.Generator().manual_seed(0))
    assert shaped(going, logits) == shaped(again, logits)


def test_p05_penalties_do_not_bleed_into_other_rows() -> None:
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(8)).expand(2, -1)
    penal = greedy(repetition_penalty=2.0, frequency_penalty=1.0)

    def tokens(order: list[SamplingParams]) -> list[list[int]]:
        batch = SamplingBatch(len(order), 30, CPU)
        for slot, params in enumerate(order):
            batch.open(Opened(slot, params, i32(1, 2, 3), NO_IDS))
        rows = logits[: len(order)]
        steps = [draw(batch, rows, np.full(len(order), 3 + n, np.int32)) for n in range(10)]
        return np.array(steps).T.tolist()

    with_penalty, without = tokens([penal])[0], tokens([greedy()])[0]
    assert len(set(with_penalty)) > 1
    assert len(set(without)) == 1
    assert tokens([penal, greedy()]) == [with_penalty, without]
    assert tokens([greedy(), penal]) == [without, with_penalty]


def test_a_slot_used_again_starts_clean() -> None:
    batch = one(greedy(repetition_penalty=2.0, logit_bias={0: 9.0}), i32(1), i32(2), (3,))
    batch.close(0)
    batch.open(Opened(0, greedy(), i32(1), NO_IDS))
    logits = torch.ones(8)
    assert shaped(batch, logits) == logits.tolist()
    with pytest.raises(ValueError, match="slot 0 is already open"):
        batch.open(Opened(0, greedy(), NO_IDS, NO_IDS))
    batch.close(0)
    batch.open(Opened(0, greedy(logit_bias={5: 1.0}), i32(1), NO_IDS))
    assert shaped(batch, logits) == [1, 1, 1, 1, 1, 2, 1, 1]
    batch.close(0)
    batch.open(Opened(0, greedy(presence_penalty=1.0), i32(1), i32(4)))
    assert shaped(batch, logits) == [1, 1, 1, 1, 0, 1, 1, 1]
    batch.close(0)
    with pytest.raises(KeyError):
        batch.close(0)


def test_logit_bias_adds_before_penalties() -> None:
    batch = one(greedy(logit_bias={2: 5.0, 0: -1.0}, repetition_penalty=2.0), prompt=i32(2))
    assert shaped(batch, torch.ones(8))[:3] == [0.0, 1.0, 3.0]


def test_stop_ids_are_masked_until_min_new_tokens_are_out() -> None:
    batch = one(greedy(min_new_tokens=2), prompt=i32(1, 2, 3), stop_ids=(6, 7, 40))
    logits = torch.arange(8.0)
    taken = [int(sample(logits[None], i32(0), i32(at), batch)[0][0]) for at in (3, 4, 5)]
    assert taken == [5, 5, 7]


def test_stop_ids_stay_legal_where_the_mask_leaves_nothing_else() -> None:
    batch = one(greedy(min_new_tokens=2), stop_ids=(6, 7))
    only_stop = np.isin(np.arange(8), [7])[None]
    with_others = np.isin(np.arange(8), [2, 7])[None]
    logits = torch.arange(8.0)[None]
    assert sample(logits, i32(0), i32(0), batch, only_stop)[0].tolist() == [7]
    assert sample(logits, i32(0), i32(0), batch, with_others)[0].tolist() == [2]


def test_packed_masks_are_read_bit_by_bit() -> None:
    legal = np.random.default_rng(0).random((3, 75)) < 0.5
    bits = np.zeros((3, 96), np.bool_)
    bits[:, :75] = legal
    packed = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    assert packed.shape == (3, 3)
    assert (unpacked(packed, 75) == legal).all()
    assert (unpacked(legal, 70) == legal[:, :70]).all()


def test_logits_that_nothing_changes_are_not_copied() -> None:
    batch = one(greedy(min_new_tokens=1), stop_ids=(3,))
    logits = torch.ones(1, 8)
    assert edited(logits, i32(0), i32(1), batch, None) is logits
    assert edited(logits, i32(0), i32(0), batch, None) is not logits


def test_what_a_slot_cannot_mean_is_refused() -> None:
    batch = SamplingBatch(1, 8, CPU)
    with pytest.raises(ValueError, match="has no seed"):
        batch.open(Opened(0, SamplingParams(), NO_IDS, NO_IDS))
    with pytest.raises(ValueError, match="logit_bias has ids from 8 to 8"):
        batch.open(Opened(0, greedy(logit_bias={8: 1.0}), NO_IDS, NO_IDS))
    with pytest.raises(ValueError, match="prompt has ids from 1 to 9"):
        batch.open(Opened(0, greedy(repetition_penalty=2.0), i32(1, 9), NO_IDS))
    batch.open(Opened(0, greedy(), NO_IDS, NO_IDS))
    with pytest.raises(ValueError, match="valid_ids 9"):
        SamplingBatch(1, 8, CPU, valid_ids=9)
