"""Attention by the Triton kernels.

Owns: which kernel a step takes and the step's arrays on the device. Must not know: how a kernel
computes, models, requests. With TRITON_INTERPRET=1 set before Triton is imported it runs on a CPU.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from radixserve.attention.base import (
    AttentionInputs,
    AttentionShape,
    RotatingBackend,
    StagedBackend,
)
from radixserve.attention.geometry import token_slots
from radixserve.errors import ConfigError
from radixserve.kernels.cpu.paged import PagedAttention
from radixserve.kernels.triton.attend_decode import MOST_SPLITS, attend_decode, choose_splits
from radixserve.kernels.triton.attend_extend import DeviceWork, attend_extend, queries_in_tile
from radixserve.kernels.triton.attend_shared import attend_shared, small_tile
from radixserve.kernels.triton.launch import arch_of, is_interpreted, power_of_2
from radixserve.kernels.triton.store_kv import rotary_store, store_kv
from radixserve.kernels.triton.terms import Terms, Tile
from radixserve.kernels.triton.work import cut
from radixserve.plan import Int32

ALIGNED = 4  # int32s: slices of the staged buffer start on 16 bytes
INTERPRETED_PROCESSORS = 2
ITEMS_PER_PROCESSOR = 4
WORK_ARRAYS = (
    "positions", "indices", "firsts", "counts", "queries", "parts", "tables", "begins", "ends",
    "clears", "merged", "merge_indptr",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecodeForm:
    """One token a row, by attend_decode. splits: as there."""

    splits: int


@dataclass(frozen=True, slots=True)
class WorkForm:
    """By attend_extend, or attend_shared where is_shared. part_count, large: as in DeviceWork."""

    tile: Tile
    is_shared: bool
    part_count: int
    large: int


class TritonAttention:
    """AttentionBackend for float32, bfloat16 and float16, with shared-prefix groups.

    A step of one token a row and no groups is attended by attend_decode, any other by one launch of
    attend_extend, or by attend_shared where rows share prefixes.
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
    ) -> None:
        """k_cache, v_cache: one [pages, page_size, num_kv_heads, head_dim] for each layer.

        Raises ConfigError where the kernels cannot run on the caches' device.
        """
        self.rotating = self.staged = self
        self._device = k_cache[0].device
        if self._device.type != "cuda" and not is_interpreted():
            raise ConfigError(
                f"attention backend 'triton' needs a GPU, not {self._device.type} (on a CPU it "
                "runs under Triton's interpreter alone: TRITON_INTERPRET=1)"
            )
        self._processors = INTERPRETED_PROCESSORS
        if self._device.type == "cuda":
            properties = torch.cuda.get_device_properties(self._device)
            self._processors = properties.multi_processor_count
        self._terms = Terms(scale=shape.scale)
        self._dtype = k_cache[0].dtype
        self._group = shape.num_qo_heads // shape.num_kv_heads
        self._num_kv_heads = shape.num_kv_heads
        self._head_dim = shape.head_dim
        self._page_size = page_size
        self._k_cache = k_cache
        self._v_cache = v_cache
        self._arch = arch_of(self._device)
        self._small = small_tile(self._group, self._head_dim, self._dtype, self._arch)

    def plan(self, inputs: AttentionInputs) -> None:
        form, arrays = self.prepare(inputs)
        self.bind(form, self._stage(arrays))

    def prepare(self, inputs: AttentionInputs) -> tuple[Hashable, list[Int32]]:
        slots = token_slots(inputs, self._page_size).astype(np.int32)
        if not inputs.shared and (inputs.lengths == 1).all():
            return self._prepare_decode(inputs, slots)
        return self._prepare_work(inputs, slots)

    def bind(self, form: Hashable, arrays: Sequence[torch.Tensor]) -> None:
        if isinstance(form, DecodeForm):
            self._slots, self._page_indptr, self._kv_lens, self._page_indices = arrays
        else:
            assert isinstance(form, WorkForm)
            self._slots = arrays[0]
            named: dict[str, Any] = dict(zip(WORK_ARRAYS, arrays[1:], strict=True))
            self._work = DeviceWork(**named, part_count=form.part_count, large=form.large)
        self._form = form

    def _prepare_decode(
        self, inputs: AttentionInputs, slots: Int32
    ) -> tuple[DecodeForm, list[Int32]]:
        kv_lens = inputs.positions + 1
        longest = int(kv_lens.max(initial=0))
        counts = (len(kv_lens), self._num_kv_heads)
        splits = choose_splits(*counts, longest, self._processors)
        # A power of two, so that few forms serve a text that grows.
        form = DecodeForm(min(MOST_SPLITS, power_of_2(splits)))
        return form, [slots, inputs.page_indptr, kv_lens, inputs.page_indices]

    def _prepare_work(self, inputs: AttentionInputs, slots: Int32) -> tuple[WorkForm, list[Int32]]:
        sharing = [int(inputs.lengths[list(group.rows)].sum()) for group in inputs.shared]
        longest = max(int(inputs.lengths.max(initial=1)), *sharing, 1)
        kind = (self._group, self._head_dim, self._dtype, self._arch)
        tile, queries = queries_in_tile(longest, *kind)
        is_shared = bool(inputs.shared) and self._small is not None
        wanted = ITEMS_PER_PROCESSOR * self._processors // self._num_kv_heads
        work = cut(
            inputs.positions,
            inputs.lengths,
            inputs.page_indptr,
            inputs.shared,
            page_size=self._page_size,
            queries=queries,
            few=self._small.rows // self._group if is_shared and self._small else 0,
            wanted=wanted,
        )
        starts = np.cumsum(inputs.lengths) - inputs.lengths
        positions = np.arange(len(slots)) + np.repeat(inputs.positions - starts, inputs.lengths)
        form = WorkForm(tile, is_shared, work.part_count, work.large)
        return form, [
            slots, positions.astype(np.int32), inputs.page_indices,
            work.firsts, work.counts, work.queries, work.parts, work.tables,
            work.begins, work.ends, work.clears, work.merged, work.merge_indptr,
        ]  # fmt: skip

    def _stage(self, arrays: Sequence[Int32]) -> list[torch.Tensor]:
        """The arrays on the device as int32, by one transfer."""
        begins = np.cumsum([0] + [-(-len(array) // ALIGNED) * ALIGNED for array in arrays])
        buffer = np.zeros(int(begins[-1]), np.int32)
        for begin, array in zip(begins.tolist(), arrays):
            buffer[begin : begin + len(array)] = array
        moved = torch.from_numpy(buffer).to(self._device)
        return [moved[b : b + len(array)] for b, array in zip(begins.tolist(), arrays)]

    def run(self, layer_id: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        store_kv(self._k_cache[layer_id], self._v_cache[layer_id], k, v, self._slots)
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
        rotary_store(heads, *angles, caches, self._slots, norms=weights, eps=eps)
        return self._attend(layer_id, heads[:, : self._group * self._num_kv_heads])

    def _attend(self, layer_id: int, q: torch.Tensor) -> torch.Tensor:
        caches = (self._k_cache[layer_id], self._v_cache[layer_id])
        form = self._form
        if isinstance(form, DecodeForm):
            tables = (self._page_indptr, self._page_indices, self._kv_lens)
            out = attend_decode(q, *caches, *tables, self._terms, splits=form.splits)
        elif form.is_shared and self._small is not None:
            tiles = (form.tile, self._small)
            out = attend_shared(
                q, *caches, self._work, self._terms, tiles, processors=self._processors
            )
        else:
            out = attend_extend(
                q, *caches, self._work, self._terms, form.tile, processors=self._processors
            )
        return out.flatten(1)
