"""Putting K and V of new tokens into their pages, with the rotation of q and k where wanted.

Owns: two kernels, and fp8 encoding. Must not know: which token has which slot, why.

store_kv, n tokens, K heads of D, e bytes an element, c in the cache: 2 * n * K * D * (e + c) bytes
moved, no FLOPs. rotary_store, H query heads more: n * D * (2 * H * e + 2 * K * (e + c) + 4) bytes
moved, 3 * n * (H + K) * D FLOPs (and 4 more an element for each norm).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixserve.kernels.triton.launch import Launch, power_of_2
from radixserve.kernels.triton.terms import FP8

BLOCK_HEADS = 8  # heads of a token that one program turns


@triton.jit
def encode_e4m3(value):
    """float32 -> float8_e4m3fn as uint8, to nearest even, clamped to 448."""
    value = tl.minimum(tl.maximum(value, -448.0), 448.0)
    # Adding 1.5 * 2 ** 23 units in the last place of three mantissa bits rounds to such a unit.
    exponent = tl.maximum(value.to(tl.int32, bitcast=True) & 0x7F800000, 121 << 23)
    unit = (exponent + (20 << 23)).to(tl.float32, bitcast=True) * 1.5
    rounded = (value + unit) - unit
    bits = (rounded * (1.0 / 256.0)).to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
    sign = (value < 0.0).to(tl.int32) << 7
    return (((bits & 0x7FFF) >> 7) | sign).to(tl.uint8)


@triton.jit
def store_cast(pointers, value, scale_ptr, kv_heads, mask):
    """Store in the cache's type, divided by the scale of each KV head where there is one."""
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + kv_heads, mask=mask, other=1.0)
        value = tl.minimum(tl.maximum(value.to(tl.float32) / scale, -448.0), 448.0)
    if pointers.dtype.element_ty == tl.uint8:
        value = encode_e4m3(value)
    tl.store(pointers, value.to(pointers.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize_on_alignment=("slots_ptr",))
def store_kernel(
    k_ptr,
    v_ptr,
    slots_ptr,
    k_scale_ptr,
    v_scale_ptr,
    k_cache_ptr,
    v_cache_ptr,
    k_stride,
    v_stride,
    SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (token, block of its SIZE = num_kv_heads * head_dim elements)."""
    token = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = index < SIZE
    place = tl.load(slots_ptr + token).to(tl.int64) * SIZE + index
    heads = index // HEAD_DIM
    k = tl.load(k_ptr + token * k_stride + index, mask=valid)
    v = tl.load(v_ptr + token * v_stride + index, mask=valid)
    store_cast(k_cache_ptr + place, k, k_scale_ptr, heads, valid)
    store_cast(v_cache_ptr + place, v, v_scale_ptr, heads, valid)


@triton.jit
def normed(first, second, weight_ptr, dims, half, eps, HEAD_DIM: tl.constexpr):
    """RMS norm of whole heads that lie in two halves; [heads, half] float32 each."""
    square = tl.sum(first * first, 1) + tl.sum(second * second, 1)
    factor = tl.rsqrt(square / HEAD_DIM + eps)[:, None]
    left = tl.load(weight_ptr + dims, mask=half, other=0.0).to(tl.float32)
    right = tl.load(weight_ptr + HEAD_DIM // 2 + dims, mask=half, other=0.0).to(tl.float32)
    return first * factor * left[None, :], second * factor * right[None, :]


@triton.jit(do_not_specialize_on_alignment=("slots_ptr",))
def rotary_store_kernel(
    heads_ptr,
    cos_ptr,
    sin_ptr,
    slots_ptr,
    q_norm_ptr,
    k_norm_ptr,
    k_scale_ptr,
    v_scale_ptr,
    k_cache_ptr,
    v_cache_ptr,
    heads_stride,
    angle_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    """Program (token, tile of its q and k heads): rotated q back in place, k and v to the cache."""
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dims = tl.arange(0, BLOCK_HALF)
    half = dims < HALF
    is_q = (head < NUM_HEADS)[:, None] & half[None, :]
    is_k = ((head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS))[:, None] & half[None, :]
    cos = tl.load(cos_ptr + token * angle_stride + dims, mask=half, other=0.0)[None, :]
    sin = tl.load(sin_ptr + token * angle_stride + dims, mask=half, other=0.0)[None, :]

    source = heads_ptr + token * heads_stride + head[:, None] * HEAD_DIM + dims[None, :]
    first = tl.load(source, mask=is_q | is_k, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=is_q | is_k, other=0.0).to(tl.float32)
    if q_norm_ptr is not None:
        q_first, q_second = normed(first, second, q_norm_ptr, dims, half, eps, HEAD_DIM)
        first, second = tl.where(is_q, q_first, first), tl.where(is_q, q_second, second)
    if k_norm_ptr is not None:
        k_first, k_second = normed(first, second, k_norm_ptr, dims, half, eps, HEAD_DIM)
        first, second = tl.where(is_k, k_first, first), tl.where(is_k, k_second, second)
    left = first * cos - second * sin
    right = second * cos + first * sin
    tl.store(source, left.to(heads_ptr.dtype.element_ty), mask=is_q)
    tl.store(source + HALF, right.to(heads_ptr.dtype.element_ty), mask=is_q)

    slot = tl.load(slots_ptr + token).to(tl.int64)
    kv_head = (head - NUM_HEADS)[:, None]
    place = (slot * NUM_KV_HEADS + kv_head) * HEAD_DIM + dims[None, :]
    store_cast(k_cache_ptr + place, left, k_scale_ptr, kv_head, is_k)
    store_cast(k_cache_ptr + place + HALF, right, k_scale_ptr, kv_head, is_k)
    values = source + NUM_KV_HEADS * HEAD_DIM
    v_first = tl.load(values, mask=is_k, other=0.0)
    v_second = tl.load(values + HALF, mask=is_k, other=0.0)
    store_cast(v_cache_ptr + place, v_first, v_scale_ptr, kv_head, is_k)
    store_cast(v_cache_ptr + place + HALF, v_second, v_scale_ptr, kv_head, is_k)


Scales = tuple[torch.Tensor, torch.Tensor] | None


def _check(k_cache: torch.Tensor, v_cache: torch.Tensor, scales: Scales) -> None:
    if k_cache.shape != v_cache.shape or not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("K and V caches must be contiguous and of one shape")
    if (k_cache.dtype in FP8) != (scales is not None):
        raise ValueError(f"a {k_cache.dtype} cache: scales belong to fp8, and fp8 needs them")


def store_launch(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    scales: Scales = None,
) -> Launch:
    """As store_kv, without running."""
    _check(k_cache, v_cache, scales)
    _, _, num_kv_heads, head_dim = k_cache.shape
    size = num_kv_heads * head_dim
    for part in (k, v):
        if part.shape[1:] != k_cache.shape[2:] or part.stride()[1:] != (head_dim, 1):
            raise ValueError(f"K and V of {tuple(part.shape)} with strides {part.stride()}")
    block = power_of_2(min(size, 1024))
    k_scale, v_scale = scales or (None, None)
    return Launch(
        kernel=store_kernel,
        grid=(len(slots), -(-size // block)),
        arguments={
            "k_ptr": k,
            "v_ptr": v,
            "slots_ptr": slots,
            "k_scale_ptr": k_scale,
            "v_scale_ptr": v_scale,
            "k_cache_ptr": k_cache,
            "v_cache_ptr": v_cache,
            "k_stride": k.stride(0),
            "v_stride": v.stride(0),
        },
        constants={"SIZE": size, "HEAD_DIM": head_dim, "BLOCK": block},
    )


def store_kv(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    scales: Scales = None,
) -> None:
    """Write K and V of tokens into their slots, as kernels.reference.store_kv.

    k_cache, v_cache: [pages, page_size, num_kv_heads, head_dim], changed. k, v: [tokens,
    num_kv_heads, head_dim], tokens apart by any stride. slots: [tokens] int32 or int64. scales: for
    an fp8 cache, as in Terms.kv_scales; larger values are clamped to what fp8 holds.
    """
    store_launch(k_cache, v_cache, k, v, slots, scales).run()


def rotary_store_launch(
    heads: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
    *,
    norms: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
    eps: float = 0.0,
    scales: Scales = None,
) -> Launch:
    """As rotary_store, without running."""
    k_cache, v_cache = caches
    _check(k_cache, v_cache, scales)
    tokens, total, head_dim = heads.shape
    num_kv_heads = k_cache.shape[2]
    turned = total - num_kv_heads  # q and k
    if heads.stride()[1:] != (head_dim, 1) or cos.stride() != sin.stride() or cos.stride(1) != 1:
        raise ValueError("heads must lie side by side, cos and sin in dense rows of one stride")
    k_scale, v_scale = scales or (None, None)
    return Launch(
        kernel=rotary_store_kernel,
        grid=(tokens, -(-turned // BLOCK_HEADS)),
        arguments={
            "heads_ptr": heads,
            "cos_ptr": cos,
            "sin_ptr": sin,
            "slots_ptr": slots,
            "q_norm_ptr": norms[0],
            "k_norm_ptr": norms[1],
            "k_scale_ptr": k_scale,
            "v_scale_ptr": v_scale,
            "k_cache_ptr": k_cache,
            "v_cache_ptr": v_cache,
            "heads_stride": heads.stride(0),
            "angle_stride": cos.stride(0),
            "eps": eps,
        },
        constants={
            "NUM_HEADS": turned - num_kv_heads,
            "NUM_KV_HEADS": num_kv_heads,
            "HEAD_DIM": head_dim,
            "BLOCK_HALF": power_of_2(head_dim // 2),
            "BLOCK_HEADS": BLOCK_HEADS,
        },
    )


def rotary_store(
    heads: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
    *,
    norms: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
    eps: float = 0.0,
    scales: Scales = None,
) -> None:
    """Rotate q and k of fused rows, q in place, k into the cache; store v.

    heads: [tokens, num_qo_heads + 2 * num_kv_heads, head_dim], q, k, v; q is changed. cos, sin:
    [tokens, head_dim / 2] float32 (as kernels.reference.rotary), rows apart by one stride. caches:
    K and V, as in store_kv, changed. slots: [tokens] int32 or int64. norms: weights, [head_dim], of
    an rms norm of each head of q and of k before they turn. scales: as in store_kv.
    """
    rotary_store_launch(heads, cos, sin, caches, slots, norms=norms, eps=eps, scales=scales).run()
