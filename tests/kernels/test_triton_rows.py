"""Norms, activations, masks, stores and copies against the reference."""

from __future__ import annotations

import pytest
import torch

from radixserve.kernels import reference
from radixserve.kernels.triton.apply_mask import apply_mask
from radixserve.kernels.triton.copy_kv import cache_table, copy_kv
from radixserve.kernels.triton.gated import gelu_mul, silu_mul
from radixserve.kernels.triton.rms_norm import rms_norm
from radixserve.kernels.triton.store_kv import rotary_store, store_kv

TYPES = [torch.float32, torch.bfloat16, torch.float16]
# The interpreter cuts bfloat16 and fp8 off where a GPU rounds to the nearest.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2.5e-2}


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert got.dtype == wanted.dtype
    tolerance = TOLERANCE[got.dtype]
    torch.testing.assert_close(got.float(), wanted.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 576), (2, 1000)])
def test_rms_norm(rows: int, size: int, dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, rows, size).to(dtype)
    weight = torch.randn(size).to(dtype)
    for more in (None, residual):
        for got, wanted in zip(
            rms_norm(x, weight, 1e-5, more), reference.rms_norm(x, weight, 1e-5, more)
        ):
            close(got, wanted)


def test_rms_norm_of_257_rows() -> None:
    x = torch.randn(257, 16)
    close(rms_norm(x, x[0], 1e-5)[0], reference.rms_norm(x, x[0], 1e-5)[0])


def test_rms_norm_of_heads_inside_wider_rows() -> None:
    x = torch.randn(5, 6, 24)[:, 1:3]
    weight = torch.randn(24)
    close(rms_norm(x, weight, 1e-6)[0], reference.rms_norm(x, weight, 1e-6)[0])


def test_rms_norm_refuses_rows_that_it_cannot_hold() -> None:
    with pytest.raises(ValueError, match="16384"):
        rms_norm(torch.zeros(1, 16385), torch.zeros(16385), 1e-5)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 96), (2, 1500)])
def test_gated_activations(rows: int, size: int, dtype: torch.dtype) -> None:
    x = (torch.randn(rows, 2 * size) * 5).to(dtype)
    # In float64, for torch's own float32 loses the small results of gelu.
    close(silu_mul(x), reference.silu_mul(x.double()).to(x.dtype))
    close(gelu_mul(x), reference.gelu_mul(x.double()).to(x.dtype))


def test_gates_far_from_zero() -> None:
    x = torch.tensor([[-1e4, -90.0, -20.0, 0.0, 20.0, 1e4, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    # In float64, for torch's own float32 loses the small results of gelu.
    close(silu_mul(x), reference.silu_mul(x.double()).to(x.dtype))
    close(gelu_mul(x), reference.gelu_mul(x.double()).to(x.dtype))


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1025])
def test_a_mask_forbids_what_its_bits_say(vocab: int) -> None:
    logits = torch.randn(4, vocab)
    logits[0, 0] = -torch.inf
    bits = torch.randint(-(2**31), 2**31, (4, -(-vocab // 32) + 1)).int()
    wanted = reference.apply_mask(logits, bits)
    apply_mask(logits, bits)
    assert torch.equal(logits, wanted)


def test_a_mask_of_some_rows_leaves_the_others() -> None:
    logits = torch.randn(3, 40)
    before = logits.clone()
    bits = torch.tensor([[0, 0], [-1, 255]], dtype=torch.int32)
    apply_mask(logits, bits, torch.tensor([2, 0], dtype=torch.int32))
    assert torch.equal(logits[:2], before[:2])
    assert torch.isinf(logits[2]).all()


def test_masks_that_do_not_fit_are_refused() -> None:
    bits = torch.zeros(2, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="33 tokens"):
        apply_mask(torch.zeros(2, 33), bits)
    with pytest.raises(ValueError, match="2 masks for 3 rows"):
        apply_mask(torch.zeros(3, 32), bits)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("page_size", "heads", "dim"), [(1, 1, 8), (5, 3, 24), (16, 2, 64)])
def test_store_kv(page_size: int, heads: int, dim: int, dtype: torch.dtype) -> None:
    ours = [torch.randn(30, page_size, heads, dim).to(dtype) for _ in range(2)]
    wanted = [cache.clone() for cache in ours]
    fused = torch.randn(7, 3 * heads, dim).to(dtype)
    k, v = fused[:, heads : 2 * heads], fused[:, 2 * heads :]
    slots = torch.randperm(30 * page_size)[:7]
    store_kv(*ours, k, v, slots.int())
    reference.store_kv(*wanted, k, v, slots)
    assert torch.equal(ours[0], wanted[0])
    assert torch.equal(ours[1], wanted[1])


@pytest.mark.parametrize("as_bits", [False, True])
def test_an_fp8_store_rounds_and_clamps(as_bits: bool) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    every = every[torch.isfinite(every)].sort().values
    ties = (every[1:] + every[:-1]) / 2
    values = torch.cat((every, ties, torch.tensor([1e5, -1e5, 1e-9, -1e-9]), torch.randn(1000)))
    values = values[: len(values) // 16 * 16].view(-1, 2, 8)
    n = len(values)
    caches = [torch.zeros(n, 1, 2, 8).to(torch.float8_e4m3fn) for _ in range(2)]
    if as_bits:
        caches = [cache.view(torch.uint8) for cache in caches]
    scales = torch.tensor([1.0, 1.0]), torch.tensor([0.5, 4.0])
    store_kv(*caches, values, values, torch.arange(n).int(), scales)
    for cache, scale in zip(caches, scales):
        exact = (values / scale[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn).float()
        got = cache.view(torch.float8_e4m3fn)[:, 0].float()
        if as_bits:
            assert torch.equal(got, exact)
        else:
            # The interpreter loses the carry of a mantissa that rounds up to a power of two, and
            # the smallest numbers; and rounds otherwise up to one step away.
            sure = (exact.abs() >= 2**-6) & (exact.abs().log2() % 1 != 0)
            assert ((got - exact).abs() <= exact.abs() / 8)[sure].all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(("q_heads", "kv_heads", "dim"), [(1, 1, 2), (9, 3, 24), (10, 5, 64)])
def test_rotary_store(
    q_heads: int, kv_heads: int, dim: int, has_norms: bool, dtype: torch.dtype
) -> None:
    heads = torch.randn(5, q_heads + 2 * kv_heads, dim).to(dtype)
    q, k, v = heads.clone().split((q_heads, kv_heads, kv_heads), dim=1)
    angles = torch.rand(5, dim // 2) * 7
    norms = (None, None)
    if has_norms:
        norms = torch.randn(dim).to(dtype), torch.randn(dim).to(dtype)
        q, k = (
            reference.rms_norm(part.float(), norm.float(), 1e-5)[0]
            for part, norm in zip((q, k), norms)
        )
    caches = [torch.zeros(4, 4, kv_heads, dim, dtype=dtype) for _ in range(2)]
    slots = torch.tensor([3, 8, 0, 15, 6])
    tables = torch.cat((angles.cos(), angles.sin()), dim=1)  # rows apart by a stride
    cos, sin = tables[:, : dim // 2], tables[:, dim // 2 :]
    rotary_store(heads, cos, sin, tuple(caches), slots.int(), norms=norms, eps=1e-5)
    close(heads[:, :q_heads], reference.rotary(q, cos, sin).to(dtype))
    assert torch.equal(heads[:, q_heads + kv_heads :], v)
    flat = [cache.view(16, kv_heads, dim) for cache in caches]
    close(flat[0][slots], reference.rotary(k, cos, sin).to(dtype))
    assert torch.equal(flat[1][slots], v)
    untouched = [slot for slot in range(16) if slot not in slots.tolist()]
    assert not flat[0][untouched].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_copies_of_the_first_tokens_of_pages(dtype: torch.dtype) -> None:
    caches = [torch.randn(6, 5, 3, 8).to(dtype) for _ in range(4)]
    wanted = [cache.clone() for cache in caches]
    orders = [(0, 3, 5), (1, 4, 2), (0, 5, 1), (2, 2, 0)]
    for at in (0, 2):
        for order in orders:
            reference.copy_kv(wanted[at], wanted[at + 1], *order)
    copy_kv(caches[0], cache_table(caches), torch.tensor(orders, dtype=torch.int32))
    for cache, exact in zip(caches, wanted):
        assert torch.equal(cache.view(torch.uint8), exact.view(torch.uint8))


def test_caches_of_odd_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="6 bytes"):
        cache_table([torch.zeros(2, 1, 1, 3, dtype=torch.float16)])
    with pytest.raises(ValueError, match="one shape"):
        cache_table([torch.zeros(2, 1, 1, 4), torch.zeros(3, 1, 1, 4)])
