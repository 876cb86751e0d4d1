"""The KV pool: where keys and values of every page live.

Owns: the tensors of all layers and the copy orders between pages. Must not know: who uses a page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from radixserve.attention.base import AttentionShape
from radixserve.attention.terms import bits
from radixserve.plan import CopyOrder


class KvPool:
    """k, v: one tensor per layer, [pages, page_size, num_kv_heads, head_dim]. prefault: on the CPU
    take all of its memory now."""

    def __init__(
        self,
        shape: AttentionShape,
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        prefault: bool = False,
    ) -> None:
        size = (pages, page_size, shape.num_kv_heads, shape.head_dim)
        self.page_size = page_size
        self.k = [_zeros(size, dtype, device, prefault) for _ in range(shape.num_layers)]
        self.v = [_zeros(size, dtype, device, prefault) for _ in range(shape.num_layers)]

    def copy(self, orders: Sequence[CopyOrder]) -> None:
        """Run copy orders, all sources being read as they were before the first of them."""
        if not orders:
            return
        source, destination = self._token_slots(orders)
        for cache in (*self.k, *self.v):
            flat = bits(cache).view(-1, *cache.shape[2:])
            flat.index_copy_(0, destination, flat.index_select(0, source))

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole pool, whether used yet or not."""
        return sum(cache.nbytes for cache in (*self.k, *self.v))

    def _token_slots(self, orders: Sequence[CopyOrder]) -> tuple[torch.Tensor, torch.Tensor]:
        device = self.k[0].device
        source = [o.source * self.page_size + i for o in orders for i in range(o.n)]
        destination = [o.destination * self.page_size + i for o in orders for i in range(o.n)]
        return torch.tensor(source, device=device), torch.tensor(destination, device=device)


def _zeros(
    size: tuple[int, ...], dtype: torch.dtype, device: torch.device, prefault: bool
) -> torch.Tensor:
    """Zeros, since a padded gather may read slots that nobody wrote yet, and NaN times a weight of
    zero is NaN. On the CPU the system gives them page by page as they are first written; prefault
    writes all of them."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    count = math.prod(size) * dtype.itemsize
    found = np.zeros(count, np.uint8)
    if prefault:
        found.fill(0)
    return torch.from_numpy(found).view(dtype).view(size)


def bytes_per_token(shape: AttentionShape, dtype: torch.dtype) -> int:
    """dtype: of the cache. bf16, 30 layers, 3 heads of 64: 2 * 30 * 3 * 64 * 2 = 23,040 bytes."""
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * dtype.itemsize
