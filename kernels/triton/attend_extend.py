"""Attention of items of work over paged KV: prefill, decode and mixed steps in one launch.

Owns: the persistent kernel. Must not know: how a step was cut (work.py), steps, layers.

For items of n queries over L tokens each, H query and K KV heads of D, caches of e bytes: bytes
moved sum(L) * K * D * 2 * e of KV (an item reads it once for all its queries and all query heads of
a KV head) and sum(n) * H * D * 2 * e of queries and output; FLOPs 4 * D * H * (pairs of a query and
a token that it sees). Tiles on the diagonal compute up to twice as much.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from radixserve.kernels.triton.launch import Launch
from radixserve.kernels.triton.merge import Parts, empty_parts, merge_launch
from radixserve.kernels.triton.streaming import attend_range, normalised, with_sinks
from radixserve.kernels.triton.terms import Terms, Tile, check_cache, shape_constants, tile_for

PROGRAMS = 2  # on each processor: one hides the other's waiting


@triton.jit
def tile_rows(firsts_ptr, counts_ptr, item, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """The rows of an item's tile, GROUP query heads for each query: the query's place in `queries`,
    the head's in its group, and which rows are there. Three of [BLOCK_M]."""
    index = tl.arange(0, BLOCK_M)
    # index // GROUP in two cheap instructions, which are repeated rather than spilled.
    order = (index * ((65535 + GROUP) // GROUP)) >> 16
    valid = order < tl.load(counts_ptr + item)
    return tl.load(firsts_ptr + item) + order, index - order * GROUP, valid


# Slices of one staging buffer: their alignment must not choose a kernel.
STAGED = (
    "positions_ptr", "indices_ptr", "firsts_ptr", "counts_ptr", "queries_ptr", "parts_ptr",
    "tables_ptr", "begins_ptr", "ends_ptr", "clears_ptr",
)  # fmt: skip


@triton.jit(do_not_specialize=["items"], do_not_specialize_on_alignment=STAGED)
def extend_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    positions_ptr,
    indices_ptr,
    firsts_ptr,
    counts_ptr,
    queries_ptr,
    parts_ptr,
    tables_ptr,
    begins_ptr,
    ends_ptr,
    clears_ptr,
    sinks_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_ptr,
    part_ptr,
    lse_ptr,
    scale,
    q_stride,
    items,
    PAGE_SIZE: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Program p takes the pairs (item, KV head) p, p + programs, .. in turn."""
    dims = tl.arange(0, BLOCK_D)
    for work in range(tl.program_id(0), items * NUM_KV_HEADS, tl.num_programs(0)):
        item = work // NUM_KV_HEADS
        head = work % NUM_KV_HEADS
        query, member, valid = tile_rows(firsts_ptr, counts_ptr, item, GROUP, BLOCK_M)
        heads = head * GROUP + member
        within = valid[:, None] & (dims < HEAD_DIM)[None, :]
        tokens = tl.load(queries_ptr + query, mask=valid, other=0).to(tl.int64)
        q_offsets = (tokens * q_stride + heads * HEAD_DIM)[:, None] + dims[None, :]
        q = tl.load(q_ptr + q_offsets, mask=within, other=0.0)

        begin = tl.load(begins_ptr + item)
        end = tl.load(ends_ptr + item)
        if WINDOW > 0:
            whole = begin
        else:
            clear = tl.maximum(tl.load(clears_ptr + item) - begin, 0)
            whole = begin + clear // BLOCK_N * BLOCK_N
        head_scale = scale
        if k_scale_ptr is not None:
            head_scale = scale * tl.load(k_scale_ptr + head)

        table_ptr = indices_ptr + tl.load(tables_ptr + item)
        top = tl.full([BLOCK_M], float("-inf"), tl.float32)
        mass = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        if WINDOW == 0:
            acc, top, mass = attend_range(
                acc, top, mass, q, mass, k_ptr, v_ptr, table_ptr, begin, whole, head, head_scale,
                False, 0, SOFTCAP, PAGE_SIZE, NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_N, WIDE,
            )  # fmt: skip
        # Here and below found again: a register held through the loop over keys is spilled.
        query, member, valid = tile_rows(firsts_ptr, counts_ptr, item, GROUP, BLOCK_M)
        tokens = tl.load(queries_ptr + query, mask=valid, other=0).to(tl.int64)
        seen = tl.load(positions_ptr + tokens, mask=valid, other=-1)
        acc, top, mass = attend_range(
            acc, top, mass, q, seen, k_ptr, v_ptr, table_ptr, whole, end, head, head_scale,
            True, WINDOW, SOFTCAP, PAGE_SIZE, NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_N, WIDE,
        )  # fmt: skip
        if v_scale_ptr is not None:
            acc *= tl.load(v_scale_ptr + head)

        query, member, valid = tile_rows(firsts_ptr, counts_ptr, item, GROUP, BLOCK_M)
        heads = head * GROUP + member
        within = valid[:, None] & (dims < HEAD_DIM)[None, :]
        # All queries of an item are whole here or all have other parts.
        if tl.load(parts_ptr + tl.load(firsts_ptr + item)) < 0:
            if sinks_ptr is not None:
                kept, mass = with_sinks(top, mass, sinks_ptr, heads, valid)
                acc *= kept[:, None]
            tokens = tl.load(queries_ptr + query, mask=valid, other=0).to(tl.int64)
            place = (tokens * (NUM_KV_HEADS * GROUP) + heads) * HEAD_DIM
            out = normalised(acc, mass).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + place[:, None] + dims[None, :], out, mask=within)
        elif part_ptr is not None:
            part = tl.load(parts_ptr + query, mask=valid, other=0).to(tl.int64)
            place = part * (NUM_KV_HEADS * GROUP) + heads
            partial = normalised(acc, mass)
            tl.store(part_ptr + place[:, None] * HEAD_DIM + dims[None, :], partial, mask=within)
            lse = top + tl.log2(tl.maximum(mass, 1e-38))
            tl.store(lse_ptr + place, tl.where(mass == 0.0, float("-inf"), lse), mask=valid)


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """work.Work on the device, all int32. positions: [tokens], each token's place in its sequence.

    indices: the step's page_indices. part_count 0: nothing is merged.
    """

    positions: torch.Tensor
    indices: torch.Tensor
    firsts: torch.Tensor
    counts: torch.Tensor
    queries: torch.Tensor
    parts: torch.Tensor
    tables: torch.Tensor
    begins: torch.Tensor
    ends: torch.Tensor
    clears: torch.Tensor
    merged: torch.Tensor
    merge_indptr: torch.Tensor
    part_count: int
    large: int


def queries_in_tile(
    longest: int, group: int, head_dim: int, dtype: torch.dtype, arch: int
) -> tuple[Tile, int]:
    """The tile for items of up to `longest` queries, and how many queries fit in it.

    group: query heads of a KV head. arch: as of launch.arch_of. Raises ValueError where the heads
    alone fill more than a tile.
    """
    tile = tile_for(max(longest, 1) * group, head_dim, dtype, arch)
    if group > tile.rows:
        raise ValueError(f"{group} query heads to a KV head are more than a tile of {tile.rows}")
    return tile, tile.rows // group


def extend_launch(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    work: DeviceWork,
    terms: Terms,
    tile: Tile,
    out: torch.Tensor,
    parts: Parts | None,
    processors: int,
    items: slice = slice(None),
) -> Launch:
    """Some items of the work, in one launch; parts: [work.part_count], None where that is 0."""
    check_cache(q, k_cache, v_cache, terms)
    tables = work.tables[items]
    num_kv_heads = k_cache.shape[2]
    return Launch(
        kernel=extend_kernel,
        grid=(min(len(tables) * num_kv_heads, PROGRAMS * processors),),
        arguments={
            "q_ptr": q,
            "k_ptr": k_cache,
            "v_ptr": v_cache,
            "positions_ptr": work.positions,
            "indices_ptr": work.indices,
            "firsts_ptr": work.firsts[items],
            "counts_ptr": work.counts[items],
            "queries_ptr": work.queries,
            "parts_ptr": work.parts,
            "tables_ptr": tables,
            "begins_ptr": work.begins[items],
            "ends_ptr": work.ends[items],
            "clears_ptr": work.clears[items],
            "out_ptr": out,
            "part_ptr": None if parts is None else parts.out,
            "lse_ptr": None if parts is None else parts.lse,
            "q_stride": q.stride(0),
            "items": len(tables),
            **terms.arguments(),
        },
        constants={**shape_constants(q, k_cache, terms), **tile.constants()},
        warps=tile.warps,
        stages=tile.stages,
    )


def attend_extend(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    work: DeviceWork,
    terms: Terms,
    tile: Tile,
    *,
    processors: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Every token of a step attends to the KV of its row up to itself, which is stored already.

    q: [tokens, num_qo_heads, head_dim], tokens apart by any stride. k_cache, v_cache: [pages,
    page_size, num_kv_heads, head_dim] in q's dtype, or fp8 (see Terms). tile: that of
    queries_in_tile, for which the work was cut. processors: of the device.
    Returns out: [tokens, num_qo_heads, head_dim] in q's dtype; tokens in no item are not written.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    parts = empty_parts(work.part_count, q) if work.part_count else None
    caches = (q, k_cache, v_cache)
    extend_launch(*caches, work, terms, tile, out, parts, processors).run()
    if parts is not None:
        merged_launch(parts, out, work, terms).run()
    return out


def merged_launch(parts: Parts, out: torch.Tensor, work: DeviceWork, terms: Terms) -> Launch:
    """Join the parts of the tokens that have some."""
    return merge_launch(parts, out, terms.sinks, tokens=work.merged, indptr=work.merge_indptr)
