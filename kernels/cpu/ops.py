"""The native operations on torch tensors.

Owns: what each asks of its tensors. Must not know: layers, steps. All tensors are on the CPU and
contiguous; float32 and bfloat16 are the types. Sums are float32; a row's result is the same to the
bit whatever rows are beside it.
"""

from __future__ import annotations

from ctypes import byref

import torch

from radixserve.kernels.cpu.library import Library
from radixserve.kernels.cpu.structs import BFLOAT16, FLOAT32, LinearArgs, NormArgs, RotaryArgs

_TYPES = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}


def type_of(*tensors: torch.Tensor | None) -> int:
    """The type that all of them have, None left out. Raises ValueError unless they are usable."""
    present = [tensor for tensor in tensors if tensor is not None]
    dtype = present[0].dtype
    for tensor in present:
        if tensor.dtype != dtype or tensor.dtype not in _TYPES:
            raise ValueError(f"native kernels cannot mix or take {dtype} and {tensor.dtype}")
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise ValueError("native kernels need contiguous tensors on the CPU")
    return _TYPES[dtype]


def pointer(tensor: torch.Tensor | None) -> int | None:
    """The address of the first element."""
    return None if tensor is None else tensor.data_ptr()


def linear(
    library: Library,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    residual: torch.Tensor | None = None,
    gated: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """x @ weight.T + bias. x: [m, in]. weight: [out, in]. bias: [out] in weight's type.

    gated: weight is [2 * out, in], gate first, and silu(gate) * up is returned. residual: [m, out],
    added after rounding. dtype of the result and of residual: x's unless given. Returns [m, out].
    """
    x_type, weight_type = type_of(x), type_of(weight, bias)
    rows, inputs = x.shape
    outs = weight.shape[0] // 2 if gated else weight.shape[0]
    if weight.shape[1] != inputs:
        raise ValueError(f"x has {inputs} columns, weight {weight.shape[1]}")
    y = torch.empty(rows, outs, dtype=dtype or x.dtype)
    y_type = type_of(y, residual)
    library.calls.rs_linear(
        byref(
            LinearArgs(
                pointer(x), pointer(weight), pointer(bias), pointer(residual), pointer(y),
                rows, inputs, outs, x_type, weight_type, y_type, gated,
            )
        )
    )  # fmt: skip
    return y


def rms_norm(
    library: Library,
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(normed, x + residual), as kernels.reference.rms_norm with one rounding less.

    x, residual: [..., size]. weight: [size].
    """
    dtype = type_of(x, weight, residual)
    normed = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    size = x.shape[-1]
    library.calls.rs_rms_norm(
        byref(
            NormArgs(
                pointer(x), pointer(residual), pointer(weight),
                None if residual is None else pointer(total), pointer(normed), size, eps, dtype,
            )
        ),
        x.numel() // size,
    )  # fmt: skip
    return normed, total


def silu_mul(library: Library, gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up. gate_up: [rows, 2 * n], gate first. Returns [rows, n]."""
    dtype = type_of(gate_up)
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, size, dtype=gate_up.dtype)
    library.calls.rs_silu_mul(pointer(gate_up), pointer(out), rows, size, dtype)
    return out


def rotary_store(
    library: Library,
    heads: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    slots: int,
    *,
    norms: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
    eps: float = 0.0,
) -> None:
    """Rotate q and k of a fused row, q in place, k into the cache; store v.

    heads: [tokens, num_qo_heads + 2 * num_kv_heads, head_dim], q, k, v; q is changed. cos, sin:
    [tokens, head_dim / 2] float32, rows apart by a common stride. caches: K and V, [pages,
    page_size, num_kv_heads, head_dim], changed. slots: address of [tokens] int64. norms: weights of
    an rms norm of each head of q and of k before they turn.
    """
    k_cache, v_cache = caches
    dtype = type_of(heads, k_cache, v_cache, *norms)
    tokens, total_heads, head_dim = heads.shape
    num_kv_heads = k_cache.shape[2]
    if cos.dtype != torch.float32 or cos.stride() != sin.stride() or cos.stride(1) != 1:
        raise ValueError("cos and sin must be float32 with equal strides and dense rows")
    library.calls.rs_rotary(
        byref(
            RotaryArgs(
                pointer(heads), pointer(cos), pointer(sin), *map(pointer, norms), slots,
                pointer(k_cache), pointer(v_cache), cos.stride(0),
                total_heads - 2 * num_kv_heads, num_kv_heads, head_dim, eps, dtype,
            )
        ),
        tokens,
    )  # fmt: skip
