"""The native operations on torch tensors.

Owns: what each asks of its tensors. Must not know: layers, steps. All tensors are on the CPU and
contiguous; float32 and bfloat16 are the types. Sums are float32; a row's result is the same to the
bit whatever rows are beside it.
"""

from __future__ import annotations

from ctypes import byref

import torch

from radixserve.kernels.cpu.library import Library
from radixserve.kernels.cpu.packed import PackedWeight
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
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
    *,
    residual: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x @ weight.T + bias. x: [m, inputs]. bias: [rows of weight] in weight's type.

    A gated weight gives silu(gate) * up. residual: [m, outs], added after rounding. dtype of the
    result and of residual: x's unless given. out: [m, outs] of that type, to write to. Returns
    [m, outs].
    """
    x_type, weight_type = type_of(x), type_of(weight.data, bias)
    rows, inputs = x.shape
    if weight.inputs != inputs:
        raise ValueError(f"x has {inputs} columns, weight {weight.inputs}")
    y = torch.empty(rows, weight.outs, dtype=dtype or x.dtype) if out is None else out
    if y.shape != (rows, weight.outs) or y.dtype != (dtype or x.dtype):
        raise ValueError(f"the result is not {y.dtype} {tuple(y.shape)}")
    y_type = type_of(y, residual)
    library.calls.rs_linear(
        byref(
            LinearArgs(
                pointer(x), pointer(weight.data), pointer(bias), pointer(residual), pointer(y),
                rows, inputs, weight.outs, x_type, weight_type, y_type, weight.is_gated,
            )
        )
    )  # fmt: skip
    return y


def gather(library: Library, table: PackedWeight, ids: torch.Tensor) -> torch.Tensor:
    """Rows of a table. ids: [n] int64. Returns [n, inputs]. IndexError where a row is not there."""
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < table.outs:
        raise IndexError(f"ids reach from {int(ids.min())} to {int(ids.max())}")
    dtype = type_of(table.data)
    out = torch.empty(len(ids), table.inputs, dtype=table.data.dtype)
    library.calls.rs_gather(
        pointer(table.data), pointer(ids), pointer(out), len(ids), table.inputs, dtype
    )
    return out


def rms_norm(library: Library, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As kernels.reference.rms_norm with one rounding less. x: [..., size]. weight: [size]."""
    dtype = type_of(x, weight)
    normed = torch.empty_like(x)
    size = x.shape[-1]
    library.calls.rs_rms_norm(
        byref(NormArgs(pointer(x), pointer(weight), pointer(normed), size, eps, dtype)),
        x.numel() // size,
    )
    return normed


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
