"""Attention by the Triton kernels.

Owns: the step's arrays on the device and the launches of a layer. Must not know: how a step is
prepared (triton_steps.py), how a kernel computes, models, requests. With TRITON_INTERPRET=1 set
before Triton is imported it runs on a CPU.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

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
from radixserve.attention.geometry import token_positions, token_slots
from radixserve.attention.terms import layer_terms
from radixserve.attention.triton_steps import (
    WORK_ARRAYS,
    DecodeForm,
    Form,
    Kind,
    WorkForm,
    decode_form,
    is_decode,
    work_of,
)
from radixserve.errors import ConfigError
from radixserve.kernels.cpu.paged import PagedAttention
from radixserve.kernels.triton.attend_decode import attend_decode
from radixserve.kernels.triton.attend_extend import DeviceWork, attend_extend
from radixserve.kernels.triton.attend_shared import attend_shared
from radixserve.kernels.triton.launch import arch_of, is_interpreted
from radixserve.kernels.triton.store_kv import rotary_store, store_kv
from radixserve.kernels.triton.terms import Terms
from radixserve.plan import Int32

ALIGNED = 4  # int32s: slices of the staged buffer start on 16 bytes
INTERPRETED_PROCESSORS = 2


class TritonAttention:
    """AttentionBackend for float32, bfloat16 and float16, with shared-prefix groups.

    A step of one token a row and no groups is attended by attend_decode, any other by one launch of
    attend_extend, or by attend_shared where rows share prefixes; layers of different windows have
    each their own form of it.
    """

    shares_prefixes = True
    paged: PagedAttention | None = None
    rotating: RotatingBackend | None
    staged: StagedBackend | None

    def __init__(
        self,
        shape: AttentionShape,
        page_size: int,
        k_cache: list[torch.Tensor],
        v_cache: list[torch.Tensor],
        tensors: AttentionTensors = NO_TENSORS,
    ) -> None:
        """k_cache, v_cache: one [pages, page_size, num_kv_heads, head_dim] for each layer.

        Raises ConfigError where the kernels cannot run on the caches' device.
        """
        self.rotating = self.staged = self
        self._device = k_cache[0].device
        processors = _processors(self._device)
        self._terms = [
            Terms(
                scale=shape.scale,
                window=terms.window,
                softcap=terms.softcap,
                sinks=terms.sinks,
                kv_scales=terms.kv_scales,
            )
            for terms in layer_terms(shape, tensors, k_cache[0])
        ]
        self._windows = sorted({terms.window for terms in self._terms})
        self._heads = shape.num_qo_heads
        self._kind = Kind(
            group=shape.num_qo_heads // shape.num_kv_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            page_size=page_size,
            dtype=k_cache[0].dtype,
            arch=arch_of(self._device),
            processors=processors,
        )
        self._k_cache = k_cache
        self._v_cache = v_cache

    def plan(self, inputs: AttentionInputs) -> None:
        form, arrays = self.prepare(inputs)
        self.bind(form, self._stage(arrays))

    def prepare(self, inputs: AttentionInputs) -> tuple[Hashable, list[Int32]]:
        slots = token_slots(inputs, self._kind.page_size).astype(np.int32)
        forms: list[Form]
        if is_decode(inputs):
            forms = [decode_form(self._kind, inputs, window) for window in self._windows]
            arrays = [slots, inputs.page_indptr, inputs.positions + 1]
        else:
            works = [work_of(self._kind, inputs, window) for window in self._windows]
            forms = [form for form, _ in works]
            arrays = [slots, token_positions(inputs).astype(np.int32)]
            arrays += [array for _, parts in works for array in parts]
        return tuple(forms), [*arrays, inputs.page_indices]

    def bind(self, form: Hashable, arrays: Sequence[torch.Tensor]) -> None:
        assert isinstance(form, tuple)
        self._forms: dict[int, Form] = dict(zip(self._windows, form, strict=True))
        self._slots, *rest, self._indices = arrays
        if isinstance(form[0], DecodeForm):
            self._page_indptr, self._kv_lens = rest
            return
        positions, *rest = rest
        self._works = {}
        size = len(WORK_ARRAYS)
        for place, (window, one) in enumerate(zip(self._windows, form)):
            mine = rest[place * size : (place + 1) * size]
            named: dict[str, Any] = dict(zip(WORK_ARRAYS, mine, strict=True))
            named |= {"positions": positions, "indices": self._indices}
            named |= {"part_count": one.part_count, "large": one.large}
            self._works[window] = DeviceWork(**named)

    def _stage(self, arrays: Sequence[Int32]) -> list[torch.Tensor]:
        """The arrays on the device as int32, by one transfer."""
        begins = np.cumsum([0] + [-(-len(array) // ALIGNED) * ALIGNED for array in arrays])
        buffer = np.zeros(int(begins[-1]), np.int32)
        for begin, array in zip(begins.tolist(), arrays):
            buffer[begin : begin + len(array)] = array
        moved = torch.from_numpy(buffer).to(self._device)
        return [moved[b : b + len(array)] for b, array in zip(begins.tolist(), arrays)]

    def run(self, layer_id: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        caches = (self._k_cache[layer_id], self._v_cache[layer_id])
        store_kv(*caches, k, v, self._slots, self._terms[layer_id].kv_scales)
        return self._attend(layer_id, q)

    def run_rotating(
        self,
        layer_id: int,
        heads: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
    ) -> torch.Tensor:
        caches = (self._k_cache[layer_id], self._v_cache[layer_id])
        weights = (None, None) if norms is None else norms
        scales = self._terms[layer_id].kv_scales
        rotary_store(heads, *angles, caches, self._slots, norms=weights, eps=eps, scales=scales)
        return self._attend(layer_id, heads[:, : self._heads])

    def _attend(self, layer_id: int, q: torch.Tensor) -> torch.Tensor:
        caches = (self._k_cache[layer_id], self._v_cache[layer_id])
        terms = self._terms[layer_id]
        form = self._forms[terms.window]
        if isinstance(form, DecodeForm):
            tables = (self._page_indptr, self._indices, self._kv_lens)
            return attend_decode(q, *caches, *tables, terms, splits=form.splits).flatten(1)
        return self._attend_work(q, caches, terms, form).flatten(1)

    def _attend_work(
        self,
        q: torch.Tensor,
        caches: tuple[torch.Tensor, torch.Tensor],
        terms: Terms,
        form: WorkForm,
    ) -> torch.Tensor:
        work, small = self._works[terms.window], self._kind.small
        processors = self._kind.processors
        if form.is_shared and small is not None:
            tiles = (form.tile, small)
            return attend_shared(q, *caches, work, terms, tiles, processors=processors)
        return attend_extend(q, *caches, work, terms, form.tile, processors=processors)


def _processors(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    if not is_interpreted():
        raise ConfigError(
            f"attention backend 'triton' needs a GPU, not {device.type} (on a CPU it runs under "
            "Triton's interpreter alone: TRITON_INTERPRET=1)"
        )
    return INTERPRETED_PROCESSORS
