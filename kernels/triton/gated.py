"""Gated activations: silu(gate) * up and gelu(gate) * up.

Owns: the kernel of both. Must not know: layers.

n rows of 2 * m elements of e bytes: 3 * n * m * e bytes moved; about 6 (silu) or 14 (gelu) FLOPs
for each of n * m results.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixserve.kernels.triton.launch import Launch, power_of_2

BLOCK = 1024


@triton.jit
def gated_kernel(x_ptr, out_ptr, x_stride, size, IS_GELU: tl.constexpr, BLOCK: tl.constexpr):
    """Program (row, block of its results)."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = index < size
    place = x_ptr + row * x_stride + index
    gate = tl.load(place, mask=valid, other=0.0).to(tl.float32)
    up = tl.load(place + size, mask=valid, other=0.0).to(tl.float32)
    slope = gate
    if IS_GELU:
        # gelu in its tanh form is x times the logistic function of twice tanh's argument.
        slope = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    # 1 / (1 + e ** -x), never with an exponential that overflows.
    small = tl.exp(-tl.abs(slope))
    weight = tl.where(slope >= 0.0, 1.0, small) / (1.0 + small)
    active = (gate * weight).to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * size + index, (active * up).to(out_ptr.dtype.element_ty), mask=valid)


def gated_launch(x: torch.Tensor, out: torch.Tensor, is_gelu: bool) -> Launch:
    """Of two dimensions, x with dense rows: the activation of x, without running."""
    rows, size = out.shape
    if x.shape != (rows, 2 * size) or x.stride(1) != 1:
        raise ValueError(f"gate and up of {tuple(x.shape)} with strides {x.stride()}")
    block = min(BLOCK, power_of_2(size))
    return Launch(
        kernel=gated_kernel,
        grid=(rows, -(-size // block)),
        arguments={"x_ptr": x, "out_ptr": out, "x_stride": x.stride(0), "size": size},
        constants={"IS_GELU": is_gelu, "BLOCK": block},
    )


def _gated(x: torch.Tensor, is_gelu: bool) -> torch.Tensor:
    flat = x.reshape(-1, x.shape[-1])
    out = torch.empty(len(flat), flat.shape[1] // 2, dtype=x.dtype, device=x.device)
    gated_launch(flat, out, is_gelu).run()
    return out.view(*x.shape[:-1], -1)


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up. x: [..., 2 * inner], gate first. Returns [..., inner]."""
    return _gated(x, is_gelu=False)


def gelu_mul(x: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up, gelu in its tanh form. x: [..., 2 * inner], gate first. [..., inner]."""
    return _gated(x, is_gelu=True)
