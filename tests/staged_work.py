"""A staged backend that computes work.Work in plain torch: what the kernels of attend_shared do.

run() asks the device nothing. Its sizes are those of the form, and where a kernel reads a number it
reads it too: from the place where the array lies, whatever the length of the tensor that was bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from radixserve.attention.base import AttentionInputs, AttentionShape
from radixserve.attention.geometry import token_positions, token_slots
from radixserve.attention.triton_steps import WORK_ARRAYS, Kind, WorkForm, work_of

MOST_KEYS = 160  # of an item
MOST_PARTS = 8  # of a token
PROCESSORS = 4


class StagedWork:
    """Every step is work, those of one token a row without groups too."""

    shares_prefixes = True
    paged = None
    rotating = None

    def __init__(self, shape: AttentionShape, page_size: int, k_cache, v_cache) -> None:
        self.staged = self
        self._scale, self._page_size = shape.scale, page_size
        self._group = shape.num_qo_heads // shape.num_kv_heads
        self._caches = list(zip(k_cache, v_cache))
        sizes = (self._group, shape.num_kv_heads, shape.head_dim, page_size)
        self._kind = Kind(*sizes, torch.float32, 90, PROCESSORS)

    def prepare(self, inputs: AttentionInputs) -> tuple[WorkForm, list]:
        form, arrays = work_of(self._kind, inputs, 0)
        slots = token_slots(inputs, self._page_size)
        places = [slots.astype("int32"), token_positions(inputs).astype("int32")]
        return form, [*places, *arrays, inputs.page_indices]

    def bind(self, form: WorkForm, arrays: Sequence[torch.Tensor]) -> None:
        self._form = form
        self._slots, self._positions, *work, self._indices = arrays
        self._work = dict(zip(WORK_ARRAYS, work, strict=True))

    def run(self, layer_id: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        caches = self._caches[layer_id]
        for cache, values in zip(caches, (k, v)):
            cache.view(-1, *values.shape[1:])[self._slots.long()] = values
        form, work = self._form, self._work
        most = max(form.tile.rows, self._kind.small.rows) // self._group
        within = torch.arange(most)
        entries = work["firsts"][:, None] + within
        is_there = within < work["counts"][:, None]
        tokens = torch.where(is_there, _read(work["queries"], entries), 0)
        out, lse = self._attend(q[tokens], self._positions[tokens], caches)
        parts = torch.where(is_there, _read(work["parts"], entries), -2)
        done = torch.zeros(len(q) + 1, *q.shape[1:])
        done[torch.where(parts == -1, tokens, len(q))] = out
        if form.part_count:
            places = torch.where(parts >= 0, parts, form.part_count)
            kept = torch.zeros(form.part_count + 1, *q.shape[1:])
            sums = torch.full((form.part_count + 1, q.shape[1]), float("-inf"))
            kept[places], sums[places] = out, lse
            self._merge(done, kept, sums)
        return done[:-1].flatten(1)

    def _attend(
        self, q: torch.Tensor, seen: torch.Tensor, caches: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q: [items, queries, heads, dim], seen: [items, queries]. The result and its exponent."""
        work = self._work
        places = work["begins"][:, None] + torch.arange(MOST_KEYS)
        inside = places < work["ends"][:, None]
        entries = work["tables"][:, None] + places // self._page_size
        pages = torch.where(inside, _read(self._indices, entries), 0).long()
        keys, values = (
            cache[pages, (places % self._page_size).long()].repeat_interleave(self._group, dim=2)
            for cache in caches
        )
        scores = torch.einsum("iqhd,ikhd->iqhk", q, keys) * self._scale
        visible = inside[:, None] & (places[:, None] <= seen[..., None])
        scores = scores.masked_fill(~visible[:, :, None], float("-inf"))
        lse = scores.logsumexp(-1)
        weights = (scores - lse.clamp_min(-1e30)[..., None]).exp()
        return torch.einsum("iqhk,ikhd->iqhd", weights, values), lse

    def _merge(self, done: torch.Tensor, kept: torch.Tensor, sums: torch.Tensor) -> None:
        tokens, indptr = self._work["merged"], self._work["merge_indptr"]
        parts = indptr[:-1, None] + torch.arange(MOST_PARTS)
        is_there = parts < indptr[1:, None]
        places = torch.where(is_there, parts, len(kept) - 1).long()
        weights = sums[places].masked_fill(~is_there[..., None], float("-inf")).softmax(1)
        merged = torch.einsum("nph,nphd->nhd", weights.nan_to_num(0.0), kept[places])
        done[torch.where(is_there[:, 0], tokens, len(done) - 1).long()] = merged


def _read(array: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Numbers of an array by their places from its beginning, its length being no matter."""
    room = array.untyped_storage().nbytes() // array.element_size() - array.storage_offset()
    return array.as_strided((room,), (1,))[index.clamp(0, room - 1).long()].long()
