"""Native norms and rotary against the reference kernels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


@keep_library
@given(rows=st.integers(1, 20), size=st.integers(1, 150), dtype=DTYPES, seed=SEEDS)
def test_rms_norm(native: Library, rows: int, size: int, dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(rows, size).to(dtype), torch.randn(size).to(dtype)
    before = x.clone()
    got = ops.rms_norm(native, x, weight, 1e-5)
    close(got, reference.rms_norm(x, weight, 1e-5)[0], dtype)
    assert torch.equal(x, before)
    assert torch.equal(ops.rms_norm(native, x[:1], weight, 1e-5), got[:1])


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
    x = torch.randn(2, 8)
    with pytest.raises(ValueError, match="float16"):
        ops.rms_norm(native, x.half(), torch.ones(8).half(), 1e-5)
    with pytest.raises(ValueError, match="contiguous"):
        ops.rms_norm(native, x.T, torch.ones(2), 1e-5)
    with pytest.raises(ValueError, match="mix"):
        ops.rms_norm(native, x, torch.ones(8).bfloat16(), 1e-5)
