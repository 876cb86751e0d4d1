"""Attention by the reference kernels: slow, on any device, and right by inspection.

Owns: turning a step's page tables into slots for those kernels. Must not know: models, speed.
"""

from __future__ import annotations

import numpy as np
import torch

from radixserve.attention.base import (
    NO_TENSORS,
    AttentionInputs,
    AttentionShape,
    AttentionTensors,
    RotatingBackend,
    StagedBackend,
)
from radixserve.attention.geometry import token_slots
from radixserve.attention.terms import encoded, layer_terms
from radixserve.kernels import reference
from radixserve.kernels.cpu.paged import PagedAttention


class ReferenceAttention:
    """AttentionBackend that loops over rows and computes in float32."""

    shares_prefixes = False
    paged: PagedAttention | None = None
    rotating: RotatingBackend | None = None
    staged: StagedBackend | None = None

    def __init__(
        self,
        shape: AttentionShape,
        page_size: int,
        k_cache: list[torch.Tensor],
        v_cache: list[torch.Tensor],
        tensors: AttentionTensors = NO_TENSORS,
    ) -> None:
        """k_cache, v_cache: one [pages, page_size, num_kv_heads, head_dim] for each layer."""
        self._scale = shape.scale
        self._terms = layer_terms(shape, tensors, k_cache[0])
        self._page_size = page_size
        self._k_cache = k_cache
        self._v_cache = v_cache

    def plan(self, inputs: AttentionInputs) -> None:
        device = self._k_cache[0].device
        ends = np.cumsum(inputs.lengths, dtype=np.int64)
        self._qo_indptr = torch.from_numpy(np.concatenate(([0], ends)))
        self._kv_lens = torch.from_numpy(inputs.positions + inputs.lengths)
        self._page_indptr = torch.from_numpy(inputs.page_indptr)
        self._page_indices = torch.from_numpy(inputs.page_indices).to(device)
        self._slots = torch.from_numpy(token_slots(inputs, self._page_size))

    def run(self, layer_id: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k_cache, v_cache = self._k_cache[layer_id], self._v_cache[layer_id]
        terms = self._terms[layer_id]
        k_scale, v_scale = terms.kv_scales or (None, None)
        k, v = encoded(k, k_cache, k_scale), encoded(v, v_cache, v_scale)
        reference.store_kv(k_cache, v_cache, k, v, self._slots)
        out = reference.attend(
            q,
            k_cache,
            v_cache,
            self._qo_indptr,
            self._kv_lens,
            self._page_indptr,
            self._page_indices,
            self._scale,
            window=terms.window,
            softcap=terms.softcap,
            sinks=terms.sinks,
            kv_scales=terms.kv_scales,
        )
        return out.flatten(1)
