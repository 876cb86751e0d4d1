"""Native matrix products, norms, rotary and activation against torch and the reference kernels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from radixserve.kernels import reference
from radixserve.kernels.cpu import ops
from radixserve.kernels.cpu.library import Library

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
SEEDS = st.integers(0, 2**31)
keep_library = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def close(got: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    """Within float32 rounding, and for bfloat16 within the rounding of the result."""
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 2.0**-7}[dtype]
    torch.testing.assert_close(got.double(), wanted.double(), rtol=tolerance, atol=tolerance)


def weights(dtype: torch.dtype, *size: int) -> torch.Tensor:
    return (torch.randn(*size) * size[-1] ** -0.5).to(dtype)


@keep_library
@given(
    m=st.integers(1, 70), inputs=st.integers(1, 200), outs=st.integers(1, 100),
    x_type=DTYPES, w_type=DTYPES, has_bias=st.booleans(), is_wide=st.booleans(), seed=SEEDS,
)  # fmt: skip
def test_linear(
    native: Library, m: int, inputs: int, outs: int, x_type: torch.dtype, w_type: torch.dtype,
    has_bias: bool, is_wide: bool, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    x, weight = torch.randn(m, inputs).to(x_type), weights(w_type, outs, inputs)
    bias = torch.randn(outs).to(w_type) if has_bias else None
    dtype = torch.float32 if is_wide else x_type
    got = ops.linear(native, x, weight, bias, dtype=dtype)
    wide_bias = None if bias is None else bias.double()
    close(got, functional.linear(x.double(), weight.double(), wide_bias), dtype)
    assert got.dtype == dtype
    # A row alone gives the same bits.
    row = seed % m
    alone = ops.linear(native, x[row : row + 1], weight, bias, dtype=dtype)
    assert torch.equal(alone, got[row : row + 1])


@keep_library
@given(
    m=st.integers(1, 70), inputs=st.integers(1, 100), outs=st.integers(1, 80),
    dtype=DTYPES, has_bias=st.booleans(), seed=SEEDS,
)  # fmt: skip
def test_linear_gated_is_linear_then_silu_mul(
    native: Library, m: int, inputs: int, outs: int, dtype: torch.dtype, has_bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(m, inputs).to(dtype), weights(dtype, 2 * outs, inputs)
    bias = torch.randn(2 * outs).to(dtype) if has_bias else None
    got = ops.linear(native, x, weight, bias, gated=True)
    apart = ops.linear(native, x, weight, bias)
    assert torch.equal(got, ops.silu_mul(native, apart))
    close(got, reference.silu_mul(apart.double()), dtype)


@keep_library
@given(m=st.integers(1, 70), outs=st.integers(1, 80), dtype=DTYPES, seed=SEEDS)
def test_linear_adds_the_residual_after_rounding(
    native: Library, m: int, outs: int, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(m, 40).to(dtype), weights(dtype, outs, 40)
    residual = torch.randn(m, outs).to(dtype)
    got = ops.linear(native, x, weight, residual=residual)
    assert torch.equal(got, ops.linear(native, x, weight) + residual)


@keep_library
@given(rows=st.integers(1, 20), size=st.integers(1, 150), dtype=DTYPES, seed=SEEDS)
def test_rms_norm(native: Library, rows: int, size: int, dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    x, residual = torch.randn(rows, size).to(dtype), torch.randn(rows, size).to(dtype)
    weight = torch.randn(size).to(dtype)
    before = x.clone()
    got, total = ops.rms_norm(native, x, weight, 1e-5, residual)
    wanted, wanted_total = reference.rms_norm(x, weight, 1e-5, residual)
    assert torch.equal(total, wanted_total)
    close(got, wanted, dtype)
    close(ops.rms_norm(native, x, weight, 1e-5)[0], reference.rms_norm(x, weight, 1e-5)[0], dtype)
    assert torch.equal(x, before)
    alone = ops.rms_norm(native, x[:1], weight, 1e-5, residual[:1])[0]
    assert torch.equal(alone, got[:1])


def test_silu_mul_far_from_zero(native: Library) -> None:
    gate = torch.tensor([[-1e30, -100.0, -20.0, 0.0, 20.0, 1e30]])
    got = ops.silu_mul(native, torch.cat((gate, torch.ones_like(gate)), dim=1))
    torch.testing.assert_close(got, functional.silu(gate), rtol=1e-6, atol=1e-30)


@keep_library
@given(
    tokens=st.integers(1, 9), kv_heads=st.integers(1, 3), group=st.integers(1, 4),
    half=st.integers(1, 40), dtype=DTYPES, has_norm=st.booleans(), seed=SEEDS,
)  # fmt: skip
def test_rotary_store(
    native: Library, tokens: int, kv_heads: int, group: int, half: int, dtype: torch.dtype,
    has_norm: bool, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    q_heads, dim = kv_heads * group, 2 * half
    heads = torch.randn(tokens, q_heads + 2 * kv_heads, dim).to(dtype)
    angles = torch.randn(tokens, half) * 50
    caches = [torch.zeros(4, 5, kv_heads, dim, dtype=dtype) for _ in range(2)]
    slots = torch.randperm(20)[:tokens]
    norms = tuple(torch.randn(dim).to(dtype) if has_norm else None for _ in range(2))
    q, k, v = torch.split(heads.clone(), [q_heads, kv_heads, kv_heads], dim=1)
    if norms[0] is not None and norms[1] is not None:
        q = reference.rms_norm(q, norms[0], 1e-5)[0]
        k = reference.rms_norm(k, norms[1], 1e-5)[0]
    ops.rotary_store(
        native, heads, angles.cos(), angles.sin(), (caches[0], caches[1]), slots.data_ptr(),
        norms=norms, eps=1e-5,
    )  # fmt: skip
    wanted = [torch.zeros_like(cache) for cache in caches]
    rotated = reference.rotary(k, angles.cos(), angles.sin())
    reference.store_kv(*wanted, rotated, v, slots)
    tolerance = 1e-5 if dtype == torch.float32 else 2.0**-5
    torch.testing.assert_close(caches[0], wanted[0], rtol=tolerance, atol=tolerance)
    assert torch.equal(caches[1], wanted[1])
    rotated = reference.rotary(q, angles.cos(), angles.sin())
    torch.testing.assert_close(heads[:, :q_heads], rotated, rtol=tolerance, atol=tolerance)


def test_what_cannot_be_computed_is_refused(native: Library) -> None:
    x, weight = torch.randn(2, 8), torch.randn(4, 8)
    with pytest.raises(ValueError, match="float16"):
        ops.linear(native, x.half(), weight)
    with pytest.raises(ValueError, match="contiguous"):
        ops.linear(native, x, torch.randn(8, 4).T)
    with pytest.raises(ValueError, match="8 columns, weight 9"):
        ops.linear(native, x, torch.randn(4, 9))
    with pytest.raises(ValueError, match="mix"):
        ops.rms_norm(native, x, torch.ones(8).bfloat16(), 1e-5)
