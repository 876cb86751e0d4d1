"""Attention by the native CPU kernels.

Owns: the meeting of the attention protocol and PagedAttention. Must not know: how it computes.
"""

from __future__ import annotations

import torch

from radixserve.attention.base import (
    NO_TENSORS,
    AttentionInputs,
    AttentionShape,
    AttentionTensors,
    RotatingBackend,
    StagedBackend,
)
from radixserve.attention.terms import refuse_terms
from radixserve.errors import ConfigError
from radixserve.kernels.cpu import library
from radixserve.kernels.cpu.paged import PagedAttention


class NativeAttention:
    """AttentionBackend for float32 and bfloat16 on the CPU, with shared-prefix groups.

    paged: what layers may use to keep a whole step native.
    """

    shares_prefixes = True
    paged: PagedAttention | None
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
        """k_cache, v_cache: one [pages, page_size, num_kv_heads, head_dim] for each layer.

        Raises ConfigError where the native library is missing or has not what the shape asks for,
        ValueError where page_size is not the caches' or the sinks are not the shape's.
        """
        refuse_terms("native", shape, k_cache[0])
        if tensors.sinks:
            raise ValueError("sinks of a model whose shape has none")
        if k_cache[0].shape[1] != page_size:
            raise ValueError(f"pages of {k_cache[0].shape[1]} tokens, not {page_size}")
        loaded = library.load()
        if loaded is None:
            raise ConfigError("attention backend 'native': the native library is not there")
        self.paged = self._paged = PagedAttention(
            loaded, shape.num_qo_heads, shape.scale, k_cache, v_cache
        )

    def plan(self, inputs: AttentionInputs) -> None:
        self._paged.plan(
            inputs.positions,
            inputs.lengths,
            inputs.page_indptr,
            inputs.page_indices,
            inputs.shared,
        )

    def run(self, layer_id: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self._paged.store(layer_id, k, v)
        return self._paged.attend(layer_id, q)
