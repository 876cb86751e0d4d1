"""Joining partial attention results by their log-sum-exp.

Owns: Parts, the kernel that joins them. Must not know: why attention was cut.

For P parts of H heads: bytes moved 4 * P * H * (head_dim + 1) read and 2 * tokens * H * head_dim
written (16-bit output); 3 * P * H * head_dim FLOPs.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from radixserve.kernels.triton.launch import Launch, power_of_2
from radixserve.kernels.triton.streaming import LOG2E


@dataclass(frozen=True, slots=True)
class Parts:
    """Results over parts of a query's KV. A part that held nothing has lse -inf.

    out: [parts, num_qo_heads, head_dim] float32, normalised. lse: [parts, num_qo_heads] float32,
    log2 of the sum of exponentials.
    """

    out: torch.Tensor
    lse: torch.Tensor


def empty_parts(count: int, q: torch.Tensor) -> Parts:
    """Room for `count` parts of queries like q: [tokens, num_qo_heads, head_dim]."""
    _, heads, head_dim = q.shape
    out = torch.empty(count, heads, head_dim, dtype=torch.float32, device=q.device)
    return Parts(out, torch.empty(count, heads, dtype=torch.float32, device=q.device))


@triton.jit(do_not_specialize_on_alignment=("tokens_ptr", "indptr_ptr"))
def merge_kernel(
    part_ptr,
    lse_ptr,
    tokens_ptr,
    indptr_ptr,
    sinks_ptr,
    out_ptr,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Program (n, h): the n-th token to merge, query head h; one without parts is left as it is."""
    index = tl.program_id(0)
    head = tl.program_id(1)
    if SPLITS > 0:
        token, first, last = index, index * SPLITS, index * SPLITS + SPLITS
    else:
        token = tl.load(tokens_ptr + index)
        first, last = tl.load(indptr_ptr + index), tl.load(indptr_ptr + index + 1)
    dims = tl.arange(0, BLOCK_D)
    valid = dims < HEAD_DIM
    top = float("-inf")
    if sinks_ptr is not None:
        top = tl.load(sinks_ptr + head) * LOG2E
    mass = tl.exp2(top - top) if sinks_ptr is not None else 0.0
    acc = tl.zeros([BLOCK_D], tl.float32)
    for part in range(first, last):
        place = tl.cast(part, tl.int64) * NUM_HEADS + head
        lse = tl.load(lse_ptr + place)
        new_top = tl.maximum(top, lse)
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        kept, taken = tl.exp2(top - base), tl.exp2(lse - base)
        value = tl.load(part_ptr + place * HEAD_DIM + dims, mask=valid, other=0.0)
        acc = acc * kept + value * taken
        mass = mass * kept + taken
        top = new_top
    out = acc / tl.where(mass == 0.0, 1.0, mass)
    place = (token.to(tl.int64) * NUM_HEADS + head) * HEAD_DIM
    written = valid & (first < last)
    tl.store(out_ptr + place + dims, out.to(out_ptr.dtype.element_ty), mask=written)


def merge_launch(
    parts: Parts,
    out: torch.Tensor,
    sinks: torch.Tensor | None,
    *,
    splits: int = 0,
    tokens: torch.Tensor | None = None,
    indptr: torch.Tensor | None = None,
) -> Launch:
    """Write the merged result of tokens to `out`: [all tokens, num_qo_heads, head_dim].

    Either every token has `splits` parts side by side, or tokens: [n] int32 names those to write,
    and token n's parts are indptr[n] .. indptr[n + 1] - 1; indptr: [n + 1] int32.
    """
    count = len(out) if tokens is None else len(tokens)
    _, heads, head_dim = out.shape
    return Launch(
        kernel=merge_kernel,
        grid=(count, heads),
        arguments={
            "part_ptr": parts.out,
            "lse_ptr": parts.lse,
            "tokens_ptr": tokens,
            "indptr_ptr": indptr,
            "sinks_ptr": sinks,
            "out_ptr": out,
        },
        constants={
            "NUM_HEADS": heads,
            "HEAD_DIM": head_dim,
            "BLOCK_D": power_of_2(head_dim, 16),
            "SPLITS": splits,
        },
        warps=1 if head_dim <= 128 else 2,
    )
