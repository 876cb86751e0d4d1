"""What a step's attention takes by the Triton kernels, prepared on the host.

Owns: which kernel a step takes, its form (all that launches are told by the host) and its arrays.
Must not know: tensors on a device, layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from radixserve.attention.base import AttentionInputs
from radixserve.kernels.triton.attend_decode import MOST_SPLITS, choose_splits
from radixserve.kernels.triton.attend_extend import queries_in_tile
from radixserve.kernels.triton.attend_shared import small_tile
from radixserve.kernels.triton.launch import power_of_2
from radixserve.kernels.triton.terms import Tile
from radixserve.kernels.triton.work import cut
from radixserve.plan import Int32

ITEMS_PER_PROCESSOR = 4
WORK_ARRAYS = (
    "firsts", "counts", "queries", "parts", "tables", "begins", "ends", "clears", "merged",
    "merge_indptr",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecodeForm:
    """One token a row, by attend_decode. splits: as there."""

    splits: int


@dataclass(frozen=True, slots=True)
class WorkForm:
    """By attend_extend, by attend_shared where is_shared. items, part_count, large: of the Work."""

    tile: Tile
    is_shared: bool
    items: int
    part_count: int
    large: int


Form = DecodeForm | WorkForm


@dataclass(frozen=True, slots=True)
class Kind:
    """What the steps of a backend have in common."""

    group: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype
    arch: int
    processors: int

    @property
    def small(self) -> Tile | None:
        return small_tile(self.group, self.head_dim, self.dtype, self.arch)


def is_decode(inputs: AttentionInputs) -> bool:
    """One token a row, and no groups."""
    return not inputs.shared and bool((inputs.lengths == 1).all())


def decode_form(kind: Kind, inputs: AttentionInputs, window: int) -> DecodeForm:
    """How rows are split where layers have that window."""
    longest = int(inputs.positions.max(initial=0)) + 1
    longest = min(longest, window) if window else longest
    splits = choose_splits(len(inputs.lengths), kind.num_kv_heads, longest, kind.processors)
    # A power of two, so that few forms serve a text that grows.
    return DecodeForm(min(MOST_SPLITS, power_of_2(splits)))


def work_of(kind: Kind, inputs: AttentionInputs, window: int) -> tuple[WorkForm, list[Int32]]:
    """Where layers have that window: the form, and the arrays that WORK_ARRAYS names.

    Of one token a row the work is padded: the form then serves many other steps of as many rows.
    """
    sharing = [int(inputs.lengths[list(group.rows)].sum()) for group in inputs.shared]
    longest = max(int(inputs.lengths.max(initial=1)), *sharing, 1)
    tile, queries = queries_in_tile(longest, kind.group, kind.head_dim, kind.dtype, kind.arch)
    small = kind.small if inputs.shared else None
    work = cut(
        inputs.positions,
        inputs.lengths,
        inputs.page_indptr,
        inputs.shared,
        page_size=kind.page_size,
        queries=queries,
        few=small.rows // kind.group if small is not None else 0,
        window=window,
        wanted=ITEMS_PER_PROCESSOR * kind.processors // kind.num_kv_heads,
    )
    if (inputs.lengths == 1).all():
        work = work.padded(len(inputs.lengths))
    form = WorkForm(tile, small is not None, work.items, work.part_count, work.large)
    return form, [getattr(work, name) for name in WORK_ARRAYS]
