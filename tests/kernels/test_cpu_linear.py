"""Native products with packed weights against torch, on shapes that fill no panel and no tile."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from radixserve.kernels import reference
from radixserve.kernels.cpu import ops
from radixserve.kernels.cpu.library import Library
from radixserve.kernels.cpu.packed import PANEL, Arena, pack, packed_bytes

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
SEEDS = st.integers(0, 2**31)
ROWS = st.one_of(st.integers(1, 33), st.sampled_from([64, 70, 255, 257, 600]))
keep_library = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def close(got: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    """Within float32 rounding, and for bfloat16 within the rounding of the result."""
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 2.0**-7}[dtype]
    torch.testing.assert_close(got.double(), wanted.double(), rtol=tolerance, atol=tolerance)


def weights(dtype: torch.dtype, *size: int) -> torch.Tensor:
    return (torch.randn(*size) * size[-1] ** -0.5).to(dtype)


@given(
    outs=st.integers(1, 100), inputs=st.integers(1, 70), dtype=DTYPES, gated=st.booleans(),
    seed=SEEDS,
)  # fmt: skip
def test_packing_keeps_every_number_in_its_place(
    outs: int, inputs: int, dtype: torch.dtype, gated: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    weight = torch.randn(2 * outs if gated else outs, inputs).to(dtype)
    packed = pack(weight, gated=gated)
    assert torch.equal(packed.plain(), weight)
    depth = 2 if dtype == torch.bfloat16 else 1
    row, column = seed % outs, seed % inputs
    height = PANEL // 2 if gated else PANEL
    place = row // height, column // depth, row % height, column % depth
    assert packed.data[place] == weight[row, column]
    assert packed.data.count_nonzero() == weight.count_nonzero()  # the filling is zeros


def test_an_arena_holds_what_it_was_made_for_and_no_more() -> None:
    matrices = [torch.randn(33, 5).bfloat16(), torch.randn(32, 7).bfloat16(), torch.randn(64, 2)]
    arena = Arena(sum(packed_bytes(matrix) for matrix in matrices))
    packed = [pack(matrix, arena=arena) for matrix in matrices]
    for matrix, one in zip(matrices, packed):
        assert torch.equal(one.plain(), matrix)
        assert one.data.data_ptr() % 128 == 0
    with pytest.raises(ValueError, match="4096 bytes do not fit"):
        pack(torch.randn(32, 32), arena=arena)


@keep_library
@given(
    m=ROWS, inputs=st.integers(1, 200), outs=st.integers(1, 100), x_type=DTYPES, w_type=DTYPES,
    has_bias=st.booleans(), is_wide=st.booleans(), seed=SEEDS,
)  # fmt: skip
def test_linear(
    native: Library, m: int, inputs: int, outs: int, x_type: torch.dtype, w_type: torch.dtype,
    has_bias: bool, is_wide: bool, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    x, weight = torch.randn(m, inputs).to(x_type), weights(w_type, outs, inputs)
    bias = torch.randn(outs).to(w_type) if has_bias else None
    dtype = torch.float32 if is_wide else x_type
    packed = pack(weight)
    got = ops.linear(native, x, packed, bias, dtype=dtype)
    wide_bias = None if bias is None else bias.double()
    close(got, functional.linear(x.double(), weight.double(), wide_bias), dtype)
    assert got.dtype == dtype
    # A row alone gives the same bits.
    row = seed % m
    alone = ops.linear(native, x[row : row + 1], packed, bias, dtype=dtype)
    assert torch.equal(alone, got[row : row + 1])


@keep_library
@given(
    m=ROWS, inputs=st.integers(1, 100), outs=st.integers(1, 80), dtype=DTYPES,
    has_bias=st.booleans(), seed=SEEDS,
)  # fmt: skip
def test_gated(
    native: Library, m: int, inputs: int, outs: int, dtype: torch.dtype, has_bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(m, inputs).to(dtype), weights(dtype, 2 * outs, inputs)
    bias = torch.randn(2 * outs).to(dtype) if has_bias else None
    packed = pack(weight, gated=True)
    got = ops.linear(native, x, packed, bias)
    apart = ops.linear(native, x, pack(weight), bias)  # both halves, rounded
    close(got, reference.silu_mul(apart.double()), dtype)
    row = seed % m
    assert torch.equal(ops.linear(native, x[row : row + 1], packed, bias), got[row : row + 1])


def test_silu_far_from_zero(native: Library) -> None:
    gate = torch.tensor([[-1e30, -100.0, -20.0, 0.0, 20.0, 1e30]])
    weight = torch.cat((torch.diag(gate[0]), torch.eye(6)))
    got = ops.linear(native, torch.ones(1, 6), pack(weight, gated=True))
    torch.testing.assert_close(got, functional.silu(gate), rtol=1e-6, atol=1e-30)


@keep_library
@given(m=ROWS, outs=st.integers(1, 80), dtype=DTYPES, seed=SEEDS)
def test_the_residual_is_added_after_rounding(
    native: Library, m: int, outs: int, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(m, 40).to(dtype), pack(weights(dtype, outs, 40))
    residual = torch.randn(m, outs).to(dtype)
    got = ops.linear(native, x, weight, residual=residual)
    assert torch.equal(got, ops.linear(native, x, weight) + residual)


@keep_library
@given(
    rows=st.integers(1, 100), inputs=st.integers(1, 70), n=st.integers(0, 40), dtype=DTYPES,
    seed=SEEDS,
)  # fmt: skip
def test_gathered_rows_are_the_tables(
    native: Library, rows: int, inputs: int, n: int, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    table, ids = torch.randn(rows, inputs).to(dtype), torch.randint(rows, (n,))
    assert torch.equal(ops.gather(native, pack(table), ids), table[ids])


def test_what_other_rows_hold_stays_theirs(native: Library) -> None:
    """NaN and infinity in one row, and an odd number of inputs, whose pair reaches beyond it."""
    for dtype in (torch.float32, torch.bfloat16):
        x, weight = torch.randn(20, 33).to(dtype), pack(torch.randn(40, 33).to(dtype))
        wanted = ops.linear(native, x, weight)
        x[3], x[7] = float("nan"), float("inf")
        got = ops.linear(native, x, weight)
        others = [row for row in range(20) if row not in (3, 7)]
        assert torch.equal(got[others], wanted[others])
        assert got[3].isnan().all()


def test_what_cannot_be_computed_is_refused(native: Library) -> None:
    x, weight = torch.randn(2, 8), torch.randn(4, 8)
    with pytest.raises(ValueError, match="float16"):
        ops.linear(native, x.half(), pack(weight))
    with pytest.raises(ValueError, match="contiguous"):
        ops.linear(native, torch.randn(8, 2).T, pack(weight))
    with pytest.raises(ValueError, match="8 columns, weight 9"):
        ops.linear(native, x, pack(torch.randn(4, 9)))
    with pytest.raises(ValueError, match=r"the result is not torch\.float32 \(3, 4\)"):
        ops.linear(native, x, pack(weight), out=torch.empty(3, 4))
    with pytest.raises(ValueError, match=r"cannot pack torch\.float16"):
        pack(weight.half())
    with pytest.raises(ValueError, match=r"cannot pack torch\.float32 \(4,\)"):
        pack(weight[:, 0])
    with pytest.raises(ValueError, match="3 rows have no halves"):
        pack(weight[:3], gated=True)
    for bad in (-1, 4):
        with pytest.raises(IndexError, match=f"from {bad} to {bad}"):
            ops.gather(native, pack(weight), torch.tensor([bad]))
