"""The inner loop of attention on the device: queries against a range of paged KV.

Owns: reading pages, decoding fp8, the streaming softmax in base 2. Must not know: how queries and
ranges are handed out.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def decode_e4m3(bits):
    """float8_e4m3fn as uint8 -> float16 of its value / 256, which has the same subnormals."""
    wide = bits.to(tl.uint16)
    return (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)


@triton.jit
def load_kv(pointers, mask, TYPE: tl.constexpr):
    """Elements of a cache in TYPE, 0 where masked."""
    value = tl.load(pointers, mask=mask, other=0.0)
    if value.dtype == tl.uint8:
        value = decode_e4m3(value).to(tl.float32) * 256.0
    return value.to(TYPE)


@triton.jit
def capped(scores, scale, SOFTCAP: tl.constexpr):
    """q @ k to the exponents of two that softmax sums."""
    if SOFTCAP > 0.0:
        twice = scores * (scale * (2.0 * LOG2E / SOFTCAP))
        # tanh(x) = 1 - 2 / (1 + e ** 2x), which neither overflows nor needs a library.
        return (1.0 - 2.0 / (1.0 + tl.exp2(twice))) * (SOFTCAP * LOG2E)
    return scores * (scale * LOG2E)


@triton.jit
def multiply(a, b, acc, WIDE: tl.constexpr):
    """a @ b + acc. WIDE: for the interpreter, which multiplies bfloat16 as if it were integers."""
    if WIDE:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def attend_range(
    acc,
    top,
    mass,
    q,
    seen,
    k_ptr,
    v_ptr,
    table_ptr,
    begin,
    end,
    head,
    scale,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Take the tokens begin .. end - 1 of a page table into a running softmax.

    acc: [M, BLOCK_D] float32, top, mass: [M] float32: weighted sum of V, largest exponent, sum of
    weights. q: [M, BLOCK_D]. seen: [M] int32, the last token each query may see. Without MASKED
    every query sees the whole range, which is a multiple of BLOCK_N. Returns acc, top, mass.
    """
    dims = tl.arange(0, BLOCK_D)
    for start in range(begin, end, BLOCK_N):
        places = start + tl.arange(0, BLOCK_N)
        inside = places < end if MASKED else places >= 0
        pages = tl.load(table_ptr + places // PAGE_SIZE, mask=inside, other=0).to(tl.int64)
        tokens = (pages * PAGE_SIZE + places % PAGE_SIZE) * NUM_KV_HEADS + head
        offsets = tokens[:, None] * HEAD_DIM + dims[None, :]
        if BLOCK_D != HEAD_DIM:
            loaded = inside[:, None] & (dims < HEAD_DIM)[None, :]
        else:
            loaded = inside[:, None]
        k = load_kv(k_ptr + offsets, loaded, q.dtype)
        blank = tl.zeros([q.shape[0], BLOCK_N], tl.float32)
        scores = capped(multiply(q, tl.trans(k), blank, WIDE), scale, SOFTCAP)
        if MASKED:
            visible = inside[None, :] & (places[None, :] <= seen[:, None])
            if WINDOW > 0:
                visible = visible & (places[None, :] > seen[:, None] - WINDOW)
            scores = tl.where(visible, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        # A query that has seen nothing yet keeps -inf; 0 in its place keeps NaN out.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores - base[:, None])
        kept = tl.exp2(top - base)
        mass = mass * kept + tl.sum(weights, 1)
        v = load_kv(v_ptr + offsets, loaded, q.dtype)
        acc = multiply(weights.to(q.dtype), v, acc * kept[:, None], WIDE)
        top = new_top
    return acc, top, mass


@triton.jit
def normalised(acc, mass):
    """acc over mass, 0 for a query that saw nothing."""
    return acc / tl.where(mass == 0.0, 1.0, mass)[:, None]


@triton.jit
def with_sinks(top, mass, sinks_ptr, heads, valid):
    """mass with the sink of each head in it. heads: [M]."""
    sinks = tl.load(sinks_ptr + heads, mask=valid, other=float("-inf")) * LOG2E
    new_top = tl.maximum(top, sinks)
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    kept = tl.exp2(top - base)
    return kept, mass * kept + tl.exp2(sinks - base)
