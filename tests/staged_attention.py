"""An attention backend that prepares on the host and binds on the device, in plain torch.

run() asks the device nothing, and reads page tables as a kernel does: from where they begin, as far
as the numbers say, whatever the length of the tensor that was bound.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch

from radixserve.attention.base import AttentionInputs, AttentionShape
from radixserve.attention.geometry import token_slots

MOST_INDICES = 256


class StagedAttention:
    """A form is the pages of the longest row, rounded up to a power of two."""

    shares_prefixes = False
    paged = None
    rotating = None

    def __init__(self, shape: AttentionShape, page_size: int, k_cache, v_cache) -> None:
        self.staged = self
        self._shape, self._page_size = shape, page_size
        self._k_cache, self._v_cache = k_cache, v_cache

    def prepare(self, inputs: AttentionInputs) -> tuple[Hashable, list]:
        starts = np.repeat(inputs.page_indptr[:-1], inputs.lengths)
        within = np.concatenate([np.arange(n) for n in inputs.lengths.tolist()])
        kv_lens = np.repeat(inputs.positions, inputs.lengths) + within + 1
        assert len(inputs.page_indices) <= MOST_INDICES
        pages = -(-int(kv_lens.max()) // self._page_size)
        slots = token_slots(inputs, self._page_size)
        arrays = (slots, starts, kv_lens, inputs.page_indices)
        return 1 << (pages - 1).bit_length(), [array.astype(np.int32) for array in arrays]

    def bind(self, form: Hashable, arrays: Sequence[torch.Tensor]) -> None:
        self._width = form
        self._slots, self._starts, self._kv_lens, self._indices = arrays

    def plan(self, inputs: AttentionInputs) -> None:
        form, arrays = self.prepare(inputs)
        self.bind(form, [torch.from_numpy(array) for array in arrays])

    def run(self, layer_id: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        caches = self._k_cache[layer_id], self._v_cache[layer_id]
        for cache, values in zip(caches, (k, v)):
            cache.view(-1, *values.shape[1:])[self._slots.long()] = values
        room = self._indices.untyped_storage().nbytes() // 4 - self._indices.storage_offset()
        table = self._indices.as_strided((min(MOST_INDICES, room),), (1,))
        last = (self._kv_lens - 1) // self._page_size
        offset = torch.minimum(torch.arange(self._width)[None, :], last[:, None])
        pages = table[(self._starts[:, None] + offset).long()].long()
        group = self._shape.num_qo_heads // self._shape.num_kv_heads
        keys, values = (
            cache[pages].flatten(1, 2).repeat_interleave(group, dim=2) for cache in caches
        )
        scores = torch.einsum("thd,tlhd->thl", q, keys) * self._shape.scale
        hidden = torch.arange(scores.shape[2])[None, :] >= self._kv_lens[:, None]
        weights = scores.masked_fill(hidden[:, None, :], float("-inf")).softmax(-1)
        return torch.einsum("thl,tlhd->thd", weights, values).flatten(1)
