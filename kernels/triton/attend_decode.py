"""Attention of one query a row over paged KV (decode), the KV of a row split over programs.

Owns: the kernel and how many ways a row is split. Must not know: steps, layers.

Rows r with kv_len tokens each, H query and K KV heads of D, caches of e bytes an element, S splits:
bytes moved: sum(kv_len) * K * D * 2 * e of KV, r * H * D * 2 * e of queries and output, and with
S > 1 another 8 * r * S * H * (D + 1) written and read. FLOPs: 4 * sum(kv_len) * H * D.
The query heads of one KV head are the rows of a matrix (at least 16, padded), so that tensor cores
multiply and K and V are read once for all of them.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixserve.kernels.triton.launch import Launch, arch_of
from radixserve.kernels.triton.merge import Parts, empty_parts, merge_launch
from radixserve.kernels.triton.streaming import attend_range, normalised, with_sinks
from radixserve.kernels.triton.terms import Terms, check_cache, shape_constants, tile_for

MOST_SPLITS = 64
LEAST_KEYS = 256  # in a split: below this the merge costs more than what the split saves


# Slices of one staging buffer: their alignment must not choose a kernel.
STAGED = ("indptr_ptr", "indices_ptr", "kv_lens_ptr")


@triton.jit(do_not_specialize_on_alignment=STAGED)
def decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    indptr_ptr,
    indices_ptr,
    kv_lens_ptr,
    sinks_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_ptr,
    part_ptr,
    lse_ptr,
    scale,
    q_stride,
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
    SPLITS: tl.constexpr,
):
    """Program (row, KV head and tile of its query heads, split)."""
    row = tl.program_id(0)
    TILES: tl.constexpr = (GROUP + BLOCK_M - 1) // BLOCK_M
    head = tl.program_id(1) // TILES
    member = (tl.program_id(1) % TILES) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = member < GROUP
    heads = head * GROUP + member
    dims = tl.arange(0, BLOCK_D)
    within = valid[:, None] & (dims < HEAD_DIM)[None, :]
    q_offsets = row.to(tl.int64) * q_stride + heads[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_offsets, mask=within, other=0.0)

    kv_len = tl.load(kv_lens_ptr + row)
    first = tl.maximum(kv_len - WINDOW, 0) if WINDOW > 0 else 0
    share = tl.cdiv(tl.cdiv(kv_len - first, SPLITS), BLOCK_N) * BLOCK_N
    begin = first + tl.program_id(2) * share
    end = tl.minimum(begin + share, kv_len)
    whole = begin + tl.maximum(end - begin, 0) // BLOCK_N * BLOCK_N
    if k_scale_ptr is not None:
        scale = scale * tl.load(k_scale_ptr + head)

    table_ptr = indices_ptr + tl.load(indptr_ptr + row)
    seen = tl.zeros([BLOCK_M], tl.int32) + (kv_len - 1)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    acc, top, mass = attend_range(
        acc, top, mass, q, seen, k_ptr, v_ptr, table_ptr, begin, whole, head, scale,
        False, 0, SOFTCAP, PAGE_SIZE, NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_N, WIDE,
    )  # fmt: skip
    acc, top, mass = attend_range(
        acc, top, mass, q, seen, k_ptr, v_ptr, table_ptr, whole, end, head, scale,
        True, 0, SOFTCAP, PAGE_SIZE, NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_N, WIDE,
    )  # fmt: skip
    if v_scale_ptr is not None:
        acc *= tl.load(v_scale_ptr + head)

    if SPLITS == 1:
        if sinks_ptr is not None:
            kept, mass = with_sinks(top, mass, sinks_ptr, heads, valid)
            acc *= kept[:, None]
        place = row.to(tl.int64) * (NUM_KV_HEADS * GROUP) + heads
        out = normalised(acc, mass).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + place[:, None] * HEAD_DIM + dims[None, :], out, mask=within)
    else:
        part = row.to(tl.int64) * SPLITS + tl.program_id(2)
        place = part * (NUM_KV_HEADS * GROUP) + heads
        out = normalised(acc, mass)
        tl.store(part_ptr + place[:, None] * HEAD_DIM + dims[None, :], out, mask=within)
        lse = tl.where(mass == 0.0, float("-inf"), top + tl.log2(tl.maximum(mass, 1e-38)))
        tl.store(lse_ptr + place, lse, mask=valid)


def choose_splits(rows: int, num_kv_heads: int, longest: int, processors: int) -> int:
    """How many ways to split each row so that about four programs run on each processor.

    longest: tokens of the longest row. At most MOST_SPLITS, and none under LEAST_KEYS tokens.
    """
    wanted = -(-4 * processors // max(1, rows * num_kv_heads))
    return max(1, min(wanted, longest // LEAST_KEYS, MOST_SPLITS))


def decode_launches(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_indptr: torch.Tensor,
    page_indices: torch.Tensor,
    kv_lens: torch.Tensor,
    terms: Terms,
    out: torch.Tensor,
    parts: Parts | None,
    splits: int,
    arch: int,
) -> list[Launch]:
    """As attend_decode, without running; parts: [rows * splits] of them where splits > 1."""
    check_cache(q, k_cache, v_cache, terms)
    group = q.shape[1] // k_cache.shape[2]
    tile = tile_for(min(group, 16), q.shape[2], q.dtype, arch)
    attend = Launch(
        kernel=decode_kernel,
        grid=(len(kv_lens), k_cache.shape[2] * -(-group // tile.rows), splits),
        arguments={
            "q_ptr": q,
            "k_ptr": k_cache,
            "v_ptr": v_cache,
            "indptr_ptr": page_indptr,
            "indices_ptr": page_indices,
            "kv_lens_ptr": kv_lens,
            "out_ptr": out,
            "part_ptr": None if parts is None else parts.out,
            "lse_ptr": None if parts is None else parts.lse,
            "q_stride": q.stride(0),
            **terms.arguments(),
        },
        constants={
            **shape_constants(q, k_cache, terms),
            **tile.constants(),
            "SPLITS": splits,
        },
        warps=tile.warps,
        stages=tile.stages,
    )
    if parts is None:
        return [attend]
    return [attend, merge_launch(parts, out, terms.sinks, splits=splits)]


def attend_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_indptr: torch.Tensor,
    page_indices: torch.Tensor,
    kv_lens: torch.Tensor,
    terms: Terms,
    *,
    splits: int = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The last token of each row attends to all of its KV, which holds that token already.

    q: [rows, num_qo_heads, head_dim], rows apart by any stride. k_cache, v_cache: [pages,
    page_size, num_kv_heads, head_dim] in q's dtype, or fp8 (see Terms). page_indptr: [rows + 1],
    page_indices: [page_indptr[-1]], kv_lens: [rows], all int32 on the device; a row of length 0
    gives zeros. splits: how many programs share a row (choose_splits); nothing else is read on
    the host, so a graph that captured the call serves every later page table of as many rows.
    Returns out: [rows, num_qo_heads, head_dim] in q's dtype.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    parts = empty_parts(len(q) * splits, q) if splits > 1 else None
    arch = arch_of(q.device)
    caches = (k_cache, v_cache, page_indptr, page_indices, kv_lens)
    for launch in decode_launches(q, *caches, terms, out, parts, splits, arch):
        launch.run()
    return out
