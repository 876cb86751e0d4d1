"""RMS norm of rows, with the residual added before.

Owns: the kernel. Must not know: which norm of a layer this is.

n rows of h elements of e bytes: 3 * n * h * e bytes moved without a residual's sum, 4 with (x and
residual read, normed and sum written), + h * e of weights; 4 * n * h FLOPs, 1 more with a residual.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixserve.kernels.triton.launch import Launch, power_of_2

MOST = 16384  # elements of a row that one program holds


@triton.jit
def rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    normed_ptr,
    total_ptr,
    x_stride,
    residual_stride,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program r: row r. Rounds where kernels.reference.rms_norm rounds."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    valid = index < SIZE
    x = tl.load(x_ptr + row * x_stride + index, mask=valid, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        more = tl.load(residual_ptr + row * residual_stride + index, mask=valid, other=0.0)
        total = (x + more.to(tl.float32)).to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + row * SIZE + index, total, mask=valid)
        x = total.to(tl.float32)
    factor = tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)
    normed = (x * factor).to(normed_ptr.dtype.element_ty).to(tl.float32)
    weight = tl.load(weight_ptr + index, mask=valid, other=0.0).to(tl.float32)
    out = (weight * normed).to(normed_ptr.dtype.element_ty)
    tl.store(normed_ptr + row * SIZE + index, out, mask=valid)


def rms_norm_launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None,
    normed: torch.Tensor,
    total: torch.Tensor,
) -> Launch:
    """As rms_norm, without running. All of two dimensions; total is x where residual is None."""
    rows, size = x.shape
    if size > MOST:
        raise ValueError(f"rows of {size}: rms_norm takes up to {MOST}")
    if x.stride(1) != 1 or (residual is not None and residual.stride(1) != 1):
        raise ValueError("rms_norm needs dense rows")
    block = power_of_2(size)
    return Launch(
        kernel=rms_norm_kernel,
        grid=(rows,),
        arguments={
            "x_ptr": x,
            "residual_ptr": residual,
            "weight_ptr": weight,
            "normed_ptr": normed,
            "total_ptr": None if residual is None else total,
            "x_stride": x.stride(0),
            "residual_stride": 0 if residual is None else residual.stride(0),
            "eps": eps,
        },
        constants={"SIZE": size, "BLOCK": block},
        warps=max(1, min(16, block // 512)),
    )


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As kernels.reference.rms_norm: (normed, x + residual), both dense and in x's dtype.

    x, residual: [..., size], the last dimension dense. weight: [size]. size is 16,384 at most.
    """
    flat = x.reshape(-1, x.shape[-1])
    normed = torch.empty(flat.shape, dtype=x.dtype, device=x.device)
    if residual is None:
        rms_norm_launch(flat, weight, eps, None, normed, flat).run()
        return normed.view(x.shape), x
    total = torch.empty_like(normed)
    rms_norm_launch(flat, weight, eps, residual.reshape(flat.shape), normed, total).run()
    return normed.view(x.shape), total.view(x.shape)
