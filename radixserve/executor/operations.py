"""Operations beside the model, queued on the device: Triton's kernels, or torch where they cannot.

Owns: the choice between the two. Must not know: plans, requests. Nothing here asks the device.
"""

from __future__ import annotations

from typing import Protocol

import torch

from radixserve.attention.terms import bits
from radixserve.executor.kv_pool import KvPool
from radixserve.kernels import reference
from radixserve.sampling.device import DrawTensors, draw_sorted


class Operations(Protocol):
    """needs_uniform: draw reads DrawTensors.uniform, and not seeds and positions."""

    needs_uniform: bool

    def copy_pages(self, pool: KvPool, orders: torch.Tensor) -> None:
        """orders: [3 * n] int32: source page, destination page, tokens. All sources are read
        before; no destination comes twice."""

    def mask(self, logits: torch.Tensor, bits: torch.Tensor) -> None:
        """In place, as kernels.reference.apply_mask."""

    def draw(self, logits: torch.Tensor, draws: DrawTensors) -> torch.Tensor:
        """As sampling.device.draw_sorted."""


class TorchOperations:
    """On any device."""

    needs_uniform = True

    def copy_pages(self, pool: KvPool, orders: torch.Tensor) -> None:
        source, destination, count = orders.view(-1, 3).long().unbind(1)
        for cache in map(bits, (*pool.k, *pool.v)):
            is_copied = torch.arange(cache.shape[1], device=cache.device) < count[:, None]
            kept = torch.where(is_copied[:, :, None, None], cache[source], cache[destination])
            cache[destination] = kept

    def mask(self, logits: torch.Tensor, bits: torch.Tensor) -> None:
        logits.copy_(reference.apply_mask(logits, bits))

    def draw(self, logits: torch.Tensor, draws: DrawTensors) -> torch.Tensor:
        return draw_sorted(logits, draws)


class TritonOperations:
    """Where Triton's kernels run."""

    needs_uniform = False

    def __init__(self, pool: KvPool) -> None:
        # Imported here: Triton is not there on every platform, and slow to import.
        from radixserve.kernels.triton.apply_mask import apply_mask
        from radixserve.kernels.triton.copy_kv import cache_table, copy_kv
        from radixserve.kernels.triton.sample import Draws, sample

        self._apply_mask, self._copy, self._sample, self._draws = apply_mask, copy_kv, sample, Draws
        self._table = cache_table((*pool.k, *pool.v))

    def copy_pages(self, pool: KvPool, orders: torch.Tensor) -> None:
        self._copy(pool.k[0], self._table, orders.view(-1, 3))

    def mask(self, logits: torch.Tensor, bits: torch.Tensor) -> None:
        self._apply_mask(logits, bits)

    def draw(self, logits: torch.Tensor, draws: DrawTensors) -> torch.Tensor:
        kept = self._draws(
            temperature=draws.temperature,
            top_k=draws.top_k,
            top_p=draws.top_p,
            min_p=draws.min_p,
            seeds=draws.seeds,
            positions=draws.positions,
            is_greedy=draws.is_greedy,
        )
        return self._sample(logits, kept)
