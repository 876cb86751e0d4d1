"""The reference kernels against other ways to compute the same thing."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from radixserve.kernels import reference


def test_store_kv_writes_each_token_to_its_slot_and_nothing_else() -> None:
    k_cache, v_cache = torch.zeros(3, 4, 2, 8), torch.zeros(3, 4, 2, 8)
    k, v = torch.randn(2, 2, 8), torch.randn(2, 2, 8)
    reference.store_kv(k_cache, v_cache, k, v, torch.tensor([9, 3]))
    assert torch.equal(k_cache[2, 1], k[0])
    assert torch.equal(v_cache[0, 3], v[1])
    assert int(k_cache.abs().sum((2, 3)).count_nonzero()) == 2


def test_copy_kv_copies_the_first_n_tokens_of_a_page() -> None:
    k_cache, v_cache = torch.randn(3, 4, 2, 8), torch.randn(3, 4, 2, 8)
    k_before = k_cache.clone()
    reference.copy_kv(k_cache, v_cache, source=2, destination=0, n=3)
    assert torch.equal(k_cache[0, :3], k_before[2, :3])
    assert torch.equal(k_cache[0, 3:], k_before[0, 3:])
    assert torch.equal(k_cache[1:], k_before[1:])
    assert torch.equal(v_cache[0, :3], v_cache[2, :3])


def test_attend_equals_torch_attention_of_each_row() -> None:
    torch.manual_seed(0)
    k_cache, v_cache = torch.randn(6, 4, 2, 8), torch.randn(6, 4, 2, 8)
    q = torch.randn(4, 6, 8)
    out = reference.attend(
        q,
        k_cache,
        v_cache,
        qo_indptr=torch.tensor([0, 3, 4]),
        kv_lens=torch.tensor([10, 5]),
        page_indptr=torch.tensor([0, 3, 5]),
        page_indices=torch.tensor([4, 0, 2, 5, 1]),
        scale=0.3,
    )
    rows = ((slice(0, 3), [4, 0, 2], 10), (slice(3, 4), [5, 1], 5))
    for tokens, pages, kv_len in rows:
        k = k_cache[pages].flatten(0, 1)[:kv_len].transpose(0, 1)
        v = v_cache[pages].flatten(0, 1)[:kv_len].transpose(0, 1)
        n = tokens.stop - tokens.start
        seen = torch.ones(kv_len, kv_len, dtype=torch.bool).tril()[kv_len - n :]
        expected = functional.scaled_dot_product_attention(
            q[tokens].transpose(0, 1), k, v, attn_mask=seen, scale=0.3, enable_gqa=True
        )
        torch.testing.assert_close(out[tokens], expected.transpose(0, 1))


def test_rms_norm_adds_the_residual_first() -> None:
    torch.manual_seed(0)
    x, residual, weight = torch.randn(5, 16), torch.randn(5, 16), torch.randn(16)
    normed, total = reference.rms_norm(x, weight, 1e-5, residual)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, functional.rms_norm(x + residual, (16,), weight, 1e-5))
    alone, same = reference.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(alone, functional.rms_norm(x, (16,), weight, 1e-5))
    assert torch.equal(same, x)


def test_rotary_is_a_product_of_complex_numbers() -> None:
    torch.manual_seed(0)
    x, angles = torch.randn(5, 3, 8), torch.randn(5, 4)
    turned = reference.rotary(x, angles.cos(), angles.sin())
    pairs = torch.complex(x[..., :4], x[..., 4:])
    expected = pairs * torch.polar(torch.ones(5, 1, 4), angles[:, None])
    torch.testing.assert_close(turned, torch.cat((expected.real, expected.imag), -1))


def test_silu_mul_gates_the_second_half() -> None:
    x = torch.tensor([[2.0, -1.0, 3.0, 5.0]])
    expected = [[2.0 * 3.0 / (1 + 2.718281828**-2), -1.0 * 5.0 / (1 + 2.718281828)]]
    torch.testing.assert_close(reference.silu_mul(x), torch.tensor(expected))


P01 = torch.tensor([0.05, 0.15, 0.35, 0.45]).log()


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p", "expected"),
    [
        (0, 1.0, 0.0, [0.05, 0.15, 0.35, 0.45]),
        (2, 1.0, 0.0, [0, 0, 0.4375, 0.5625]),
        (2, 0.5, 0.0, [0, 0, 0, 1]),
        (0, 0.5, 0.0, [0, 0, 0.4375, 0.5625]),
        (2, 1.0, 0.9, [0, 0, 0, 1]),
        (9, 0.0, 0.0, [0, 0, 0, 1]),
    ],
)
def test_filters_apply_in_order(
    top_k: int, top_p: float, min_p: float, expected: list[float]
) -> None:
    probs = reference.filtered_probs(P01, 1.0, top_k, top_p, min_p)
    torch.testing.assert_close(probs, torch.tensor(expected).double(), rtol=0, atol=1e-6)


def test_sample_inverts_the_cumulated_distribution_in_id_order() -> None:
    drawn = [reference.sample(P01, uniform, 1.0) for uniform in (0.0, 0.049, 0.051, 0.21, 0.999)]
    assert drawn == [0, 0, 1, 2, 3]
    assert reference.sample(P01, 0.0, 0.0) == 3
