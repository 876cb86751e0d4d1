"""Taking from logits the tokens that a packed bitmask forbids.

Owns: the kernel. Must not know: grammars.

k masked rows over a vocabulary of v: k * v / 8 bytes of bits read, 4 bytes of each forbidden logit
written; no FLOPs.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixserve.kernels.triton.launch import Launch

BLOCK = 1024


@triton.jit(do_not_specialize_on_alignment=("rows_ptr",))
def apply_mask_kernel(
    logits_ptr, bits_ptr, rows_ptr, vocab, logits_stride, bits_stride, BLOCK: tl.constexpr
):
    """Program (mask row, block of tokens)."""
    index = tl.program_id(0).to(tl.int64)
    row = index if rows_ptr is None else tl.load(rows_ptr + index).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    words = tl.load(bits_ptr + index * bits_stride + ids // 32, mask=ids < vocab, other=0)
    forbidden = ((words >> (ids % 32)) & 1) == 0
    place = logits_ptr + row * logits_stride + ids
    tl.store(place, float("-inf"), mask=forbidden & (ids < vocab))


def apply_mask_launch(
    logits: torch.Tensor, bits: torch.Tensor, rows: torch.Tensor | None
) -> Launch:
    """As apply_mask, without running."""
    count, vocab = len(bits), logits.shape[1]
    if bits.dtype != torch.int32 or bits.shape[1] * 32 < vocab:
        raise ValueError(f"a mask of {bits.dtype} {tuple(bits.shape)} for {vocab} tokens")
    if count != (len(logits) if rows is None else len(rows)):
        raise ValueError(f"{count} masks for {len(logits) if rows is None else len(rows)} rows")
    if logits.stride(1) != 1 or bits.stride(1) != 1:
        raise ValueError("apply_mask needs dense rows")
    return Launch(
        kernel=apply_mask_kernel,
        grid=(count, -(-vocab // BLOCK)),
        arguments={
            "logits_ptr": logits,
            "bits_ptr": bits,
            "rows_ptr": rows,
            "vocab": vocab,
            "logits_stride": logits.stride(0),
            "bits_stride": bits.stride(0),
        },
        constants={"BLOCK": BLOCK},
    )


def apply_mask(logits: torch.Tensor, bits: torch.Tensor, rows: torch.Tensor | None = None) -> None:
    """Set the logits whose bit is 0 to -inf, in place.

    logits: [n, vocab], changed. bits: [k, ceil(vocab / 32) or more] int32, token 32 * i + j in bit
    j of word i. rows: [k] int32 on the device, the row of each mask; None: mask i is of row i.
    """
    apply_mask_launch(logits, bits, rows).run()
