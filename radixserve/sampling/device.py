"""Drawing on the device without asking it anything: torch's way, for devices without the kernels.

Owns: the arrays of a draw, and a draw of sorted rows. Must not know: how logits were computed,
copies between host and device. kernels.triton.sample does the same faster; the filters mean what
kernels.reference.sample says, and an id is that of sampler.sample unless the uniform lies within
rounding of a border.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from radixserve.plan import Int32
from radixserve.sampling.batch import SamplingBatch
from radixserve.sampling.random import uniforms


@dataclass(frozen=True, slots=True)
class DrawTensors:
    """Of k rows, on the device: temperature float32; top_k int32, 0 is off; top_p, min_p, uniform
    float64; seeds int64, the bits of the uint64; positions int64; is_greedy bool."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
    is_greedy: torch.Tensor
    uniform: torch.Tensor


def draw_arrays(
    slots: Int32, samples: Int32, batch: SamplingBatch, *, needs_uniform: bool
) -> Sequence[npt.NDArray[Any]]:
    """The arrays of DrawTensors for the rows of these slots, in its order.

    samples: as sampler.sample. needs_uniform: else uniform is 0, for kernels that compute it.
    """
    seeds = batch.seed[slots]
    drawn = uniforms(seeds, samples) if needs_uniform else np.zeros(len(slots))
    return (
        batch.temperature[slots],
        batch.top_k[slots].astype(np.int32),
        batch.top_p[slots],
        batch.min_p[slots],
        seeds.view(np.int64),
        samples.astype(np.int64),
        batch.is_greedy[slots],
        drawn,
    )


def draw_sorted(logits: torch.Tensor, draws: DrawTensors) -> torch.Tensor:
    """One token for each row: [k] int32, -1 where the best logit is not finite.

    logits: [k, vocab] float32, edits and masks done, not changed.
    """
    best = logits.argmax(dim=1)
    top = logits.gather(1, best[:, None])[:, 0]
    scaled = (logits / draws.temperature[:, None]).double()
    ranked, order = torch.sort(scaled, dim=1, descending=True, stable=True)
    weights = torch.exp(ranked - ranked[:, :1])
    place = torch.arange(logits.shape[1], device=logits.device)[None, :]
    kept = (draws.top_k[:, None] == 0) | (place < draws.top_k[:, None])
    weights = weights.masked_fill(~kept, 0.0)
    sums = weights.cumsum(1)
    before = sums - weights
    tail = (before >= draws.top_p[:, None] * sums[:, -1:]) & (place > 0)
    weights = weights.masked_fill(tail & (draws.top_p[:, None] < 1.0), 0.0)
    weights = weights.masked_fill(weights < draws.min_p[:, None], 0.0)
    mass = torch.zeros_like(weights).scatter_(1, order, weights)
    reached = mass.cumsum(1)
    passed = reached > draws.uniform[:, None] * reached[:, -1:]
    last = place.masked_fill(mass == 0.0, 0).amax(1)
    drawn = torch.minimum(passed.int().argmax(1), last)
    drawn = torch.where(passed.any(1), drawn, last)
    ids = torch.where(draws.is_greedy, best, drawn)
    return torch.where(torch.isfinite(top), ids, -1).int()
