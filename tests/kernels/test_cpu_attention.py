"""Native attention against the reference kernel; shared prefixes against none, to the bit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve.kernels import reference
from radixserve.kernels.cpu.library import Library
from radixserve.kernels.cpu.paged import PagedAttention
from radixserve.plan import SharedGroup
from radixserve.scheduler.sharing import shared_groups

keep_library = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass
class Scene:
    """Rows over a pool in which all that no row holds is NaN."""

    page_size: int
    kv_heads: int
    group: int
    head_dim: int
    dtype: torch.dtype
    positions: list[int]
    lengths: list[int]
    tables: list[list[int]]

    def __post_init__(self) -> None:
        pages = max(page for table in self.tables for page in table) + 1
        size = (pages, self.page_size, self.kv_heads, self.head_dim)
        self.k = torch.full(size, torch.nan).to(self.dtype)
        self.v = self.k.clone()
        for table, position, length in zip(self.tables, self.positions, self.lengths):
            for place in range(position + length):
                slot = table[place // self.page_size], place % self.page_size
                self.k[slot] = torch.randn(size[2:]).to(self.dtype)
                self.v[slot] = torch.randn(size[2:]).to(self.dtype)
        self.indptr = np.cumsum([0, *(len(table) for table in self.tables)]).astype(np.int32)
        self.indices = np.concatenate(self.tables).astype(np.int32)
        heads = self.kv_heads * self.group
        self.q = torch.randn(sum(self.lengths), heads, self.head_dim).to(self.dtype)
        self.scale = self.head_dim**-0.5

    def groups(self) -> tuple[SharedGroup, ...]:
        arrays = (np.array(part, np.int32) for part in (self.positions, self.lengths))
        return shared_groups(self.indptr, self.indices, *arrays, self.page_size)

    def native(self, library: Library, shared: tuple[SharedGroup, ...] = ()) -> torch.Tensor:
        heads = self.kv_heads * self.group
        paged = PagedAttention(library, heads, self.scale, [self.k] * 2, [self.v] * 2)
        rows = np.array(self.positions, np.int32), np.array(self.lengths, np.int32)
        paged.plan(*rows, self.indptr, self.indices, shared)
        first, second = paged.attend(0, self.q), paged.attend(1, self.q)
        assert torch.equal(first, second)  # a plan serves every layer
        return first

    def row(self, library: Library, row: int) -> torch.Tensor:
        begin = sum(self.lengths[:row])
        alone = Scene.__new__(Scene)
        alone.__dict__ |= self.__dict__
        alone.positions, alone.lengths = [self.positions[row]], [self.lengths[row]]
        alone.indptr = np.array([0, len(self.tables[row])], np.int32)
        alone.indices = np.array(self.tables[row], np.int32)
        alone.q = self.q[begin : begin + self.lengths[row]].contiguous()
        return alone.native(library)

    def check(self, got: torch.Tensor, float_tolerance: float = 1e-5) -> None:
        ends = torch.tensor(self.positions) + torch.tensor(self.lengths)
        wanted = reference.attend(
            self.q.float(), self.k.float(), self.v.float(),
            torch.from_numpy(np.cumsum([0, *self.lengths])), ends,
            torch.from_numpy(self.indptr), torch.from_numpy(self.indices), self.scale,
        ).flatten(1)  # fmt: skip
        tolerance = float_tolerance if self.dtype == torch.float32 else 0.02
        torch.testing.assert_close(got.float(), wanted, rtol=tolerance, atol=tolerance)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Decode and extend rows of lengths around borders, each with pages of its own."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    page_size = draw(st.sampled_from([1, 3, 16, 48]))
    borders = st.sampled_from([0, 1, page_size - 1, page_size, 31, 32, 33, 63, 64, 65, 100, 256])
    shape = [
        (draw(borders), draw(st.one_of(st.just(1), st.integers(1, 40))))
        for _ in range(draw(st.integers(1, 4)))
    ]
    free = iter(np.random.default_rng(draw(st.integers(0, 99))).permutation(1300).tolist())
    return Scene(
        page_size,
        kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 8)),
        head_dim=draw(st.sampled_from([2, 24, 40, 64, 96, 128])),
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16])),
        positions=[position for position, _ in shape],
        lengths=[length for _, length in shape],
        tables=[
            [next(free) for _ in range(-(-(position + length) // page_size))]
            for position, length in shape
        ],
    )


@keep_library
@given(scene=scenes())
def test_rows_are_the_reference_together_and_to_the_bit_alone(
    native: Library, scene: Scene
) -> None:
    got = scene.native(native)
    scene.check(got)
    begin = 0
    for row, length in enumerate(scene.lengths):
        assert torch.equal(scene.row(native, row), got[begin : begin + length])
        begin += length


@st.composite
def trees(draw: st.DrawFn) -> Scene:
    """Rows on paths of a tree of pages: prefixes shared by all, by some, by none."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    page_size = draw(st.sampled_from([4, 16, 40]))
    numbers = iter(range(10**6))
    paths: list[list[int]] = [[]]
    for _ in range(draw(st.integers(1, 4))):
        parent = draw(st.sampled_from(paths))
        grown = draw(st.integers(1, max(1, draw(st.sampled_from([80, 200, 700])) // page_size)))
        paths.append(parent + [next(numbers) for _ in range(grown)])
    # From 8 rows on, and 4 on one thread, the heads of a row are attended together.
    rows = [draw(st.sampled_from(paths)) for _ in range(draw(st.integers(2, 9)))]
    own = [draw(st.integers(0, 2 * page_size)) for _ in rows]
    lengths = [draw(st.sampled_from([1, 1, 1, 2, 5, 17])) for _ in rows]
    positions = [len(path) * page_size + extra for path, extra in zip(rows, own)]
    tables = [
        path + [next(numbers) for _ in range(-(-(position + n) // page_size) - len(path))]
        for path, position, n in zip(rows, positions, lengths)
    ]
    kv_heads, group = draw(st.sampled_from([(1, 1), (3, 3), (2, 1), (1, 8)]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    dim = draw(st.sampled_from([8, 64]))
    return Scene(page_size, kv_heads, group, dim, dtype, positions, lengths, tables)


@keep_library
@given(scene=trees(), threads=st.sampled_from([1, 2]))
def test_a_shared_prefix_read_once_changes_no_bit(
    native: Library, scene: Scene, threads: int
) -> None:
    native.set_threads(threads)
    flat = scene.native(native)
    native.set_threads(2)
    scene.check(flat)
    assert torch.equal(scene.native(native, scene.groups()), flat)
    native.set_threads(1)
    assert torch.equal(scene.native(native, scene.groups()), flat)
    native.set_threads(2)


def test_large_scores_of_a_later_block_take_over(native: Library) -> None:
    """Weights are taken relative to a score that is left behind by far, then by little."""
    scene = Scene(16, 1, 4, 64, torch.float32, [400], [1], [list(range(26))])
    scene.k[:26] *= torch.linspace(0.01, 40.0, 26)[:, None, None, None]
    # How a build rounds a score of 100 moves its weight in the fifth digit.
    scene.check(scene.native(native), float_tolerance=1e-4)


def test_groups_within_groups_are_attended_level_by_level(native: Library) -> None:
    trunk, left = list(range(40)), list(range(40, 80))
    tables = [trunk + left + [100 + i] for i in range(3)] + [[*trunk, 200]]
    positions = [80 * 16 + 3, 80 * 16 + 9, 80 * 16 + 15, 40 * 16 + 1]
    scene = Scene(16, 2, 3, 64, torch.float32, positions, [1, 1, 1, 1], tables)
    groups = (SharedGroup((0, 1, 2, 3), 0, 40), SharedGroup((0, 1, 2), 40, 80))
    assert scene.groups() == groups
    assert torch.equal(scene.native(native, groups), scene.native(native))


def test_a_long_row_is_split_over_threads_without_a_change(native: Library) -> None:
    scene = Scene(16, 1, 4, 64, torch.float32, [1700], [1], [list(range(107))])
    split = scene.native(native)
    scene.check(split)
    native.set_threads(1)  # one thread and many rows: the row stays whole
    begin = [list(range(107)), *([107 + i] for i in range(8))]
    company = Scene(16, 1, 4, 64, torch.float32, [1700] + [3] * 8, [1] * 9, begin)
    company.k[:107], company.v[:107] = scene.k, scene.v
    company.q[0] = scene.q[0]
    assert torch.equal(company.native(native)[:1], split)
    native.set_threads(2)


def test_a_group_that_reaches_into_a_rows_own_tokens_is_cut(native: Library) -> None:
    table = list(range(6))
    scene = Scene(16, 1, 2, 16, torch.float32, [80, 40], [1, 1], [table, table[:3]])
    got = scene.native(native, (SharedGroup((0, 1), 0, 3),))
    assert torch.equal(got, scene.native(native))


def test_caches_that_cannot_be_attended_are_refused(native: Library) -> None:
    cache = torch.zeros(2, 4, 2, 8)
    with pytest.raises(ValueError, match="3 on 2 heads"):
        PagedAttention(native, 3, 1.0, [cache], [cache])
    with pytest.raises(ValueError, match="float16"):
        PagedAttention(native, 4, 1.0, [cache.half()], [cache.half()])
    paged = PagedAttention(native, 4, 1.0, [cache], [cache])
    one, table = np.ones(1, np.int32), np.array([0, 1], np.int32)
    paged.plan(0 * one, one, table, table[:1])
    with pytest.raises(ValueError, match="strides"):
        paged.attend(0, torch.zeros(2, 4, 8))
