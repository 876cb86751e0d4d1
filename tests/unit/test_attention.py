"""Attention backends: the CPU one is the reference one, however a step is cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixserve.attention import cpu, select
from radixserve.attention.base import AttentionInputs, AttentionShape
from radixserve.attention.cpu import CpuAttention
from radixserve.attention.geometry import bucket_rows, token_slots
from radixserve.attention.reference import ReferenceAttention
from radixserve.errors import ConfigError

HEAD_DIM = 8
LAYERS = 2


@dataclass
class Pool:
    """A KV pool in which every slot that nothing has written is NaN."""

    page_size: int
    kv_heads: int
    group: int
    pages: int
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        self.shape = AttentionShape(
            num_layers=LAYERS,
            num_qo_heads=self.kv_heads * self.group,
            num_kv_heads=self.kv_heads,
            head_dim=HEAD_DIM,
            scale=HEAD_DIM**-0.5,
        )
        size = (self.pages, self.page_size, self.kv_heads, HEAD_DIM)
        self.k = [torch.full(size, torch.nan, dtype=self.dtype) for _ in range(LAYERS)]
        self.v = [torch.full(size, torch.nan, dtype=self.dtype) for _ in range(LAYERS)]

    def reference(self) -> ReferenceAttention:
        return ReferenceAttention(self.shape, self.page_size, self.k, self.v)

    def cpu(self) -> CpuAttention:
        return CpuAttention(self.shape, self.page_size, self.k, self.v)

    def copy(self) -> Pool:
        other = Pool(self.page_size, self.kv_heads, self.group, self.pages, self.dtype)
        other.k, other.v = [t.clone() for t in self.k], [t.clone() for t in self.v]
        return other


@dataclass
class Sequence:
    """q, k, v: of all tokens of one request, for each layer. pages: its page table."""

    length: int
    pages: np.ndarray
    q: list[torch.Tensor]
    k: list[torch.Tensor]
    v: list[torch.Tensor]


def sequences(pool: Pool, lengths: list[int], seed: int) -> list[Sequence]:
    random = torch.Generator().manual_seed(seed)
    order = np.random.default_rng(seed).permutation(pool.pages).astype(np.int32)
    result = []
    for length in lengths:
        count = -(-length // pool.page_size)
        pages, order = order[:count], order[count:]

        def some(heads: int, n: int = length) -> list[torch.Tensor]:
            size = (n, heads, HEAD_DIM)
            return [torch.randn(size, generator=random).to(pool.dtype) for _ in range(LAYERS)]

        qo_heads = pool.kv_heads * pool.group
        result.append(
            Sequence(length, pages, some(qo_heads), some(pool.kv_heads), some(pool.kv_heads))
        )
    return result


Span = tuple[int, int, int]  # sequence, first position, end


def step(
    backend: ReferenceAttention | CpuAttention,
    page_size: int,
    batch: list[Sequence],
    spans: list[Span],
) -> list[list[torch.Tensor]]:
    """Run a step of one row per span. Returns, by span and layer, [tokens, heads * head_dim]."""
    tables = [batch[i].pages[: -(-end // page_size)] for i, _, end in spans]
    backend.plan(
        AttentionInputs(
            positions=np.array([begin for _, begin, _ in spans], np.int32),
            lengths=np.array([end - begin for _, begin, end in spans], np.int32),
            page_indptr=np.cumsum([0, *map(len, tables)]).astype(np.int32),
            page_indices=np.concatenate(tables),
        )
    )
    layers = []
    for layer in range(LAYERS):
        q, k, v = (
            torch.cat([parts[i][layer][begin:end] for i, begin, end in spans])
            for parts in (
                [s.q for s in batch],
                [s.k for s in batch],
                [s.v for s in batch],
            )
        )
        layers.append(backend.run(layer, q, k, v).split([end - begin for _, begin, end in spans]))
    return [[outs[i] for outs in layers] for i in range(len(spans))]


def assert_same(left: list[list[torch.Tensor]], right: list[list[torch.Tensor]]) -> None:
    for a, b in zip(left, right, strict=True):
        for x, y in zip(a, b, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


rows = st.lists(
    st.tuples(st.integers(0, 40), st.one_of(st.just(1), st.integers(1, 30))),
    min_size=1,
    max_size=7,
)


@given(
    rows=rows,
    page_size=st.sampled_from([1, 2, 4, 16]),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 3, 4]),
    seed=st.integers(0, 2**16),
)
def test_cpu_equals_reference_on_ragged_steps(
    rows: list[tuple[int, int]], page_size: int, kv_heads: int, group: int, seed: int
) -> None:
    pool = Pool(page_size, kv_heads, group, pages=7 * 70)
    batch = sequences(pool, [prefix + n for prefix, n in rows], seed)
    prefixes = [(i, 0, prefix) for i, (prefix, _) in enumerate(rows) if prefix]
    spans = [(i, prefix, prefix + n) for i, (prefix, n) in enumerate(rows)]
    other = pool.copy()
    if prefixes:
        expected = step(pool.reference(), page_size, batch, prefixes)
        assert_same(step(other.cpu(), page_size, batch, prefixes), expected)
    expected = step(pool.reference(), page_size, batch, spans)
    assert_same(step(other.cpu(), page_size, batch, spans), expected)
    for left, right in zip(pool.k + pool.v, other.k + other.v):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    page_size=st.sampled_from([1, 2, 4, 16]),
    seed=st.integers(0, 2**16),
    data=st.data(),
)
def test_whole_equals_chunked_equals_permuted(
    lengths: list[int], page_size: int, seed: int, data: st.DataObject
) -> None:
    pool = Pool(page_size, kv_heads=2, group=3, pages=5 * 40)
    batch = sequences(pool, lengths, seed)
    whole_spans = [(i, 0, n) for i, n in enumerate(lengths)]
    whole = step(pool.copy().cpu(), page_size, batch, whole_spans)

    order = data.draw(st.permutations(whole_spans))
    permuted = step(pool.copy().cpu(), page_size, batch, order)
    assert_same([permuted[order.index(span)] for span in whole_spans], whole)

    backend, done = pool.copy().cpu(), [0] * len(lengths)
    parts: list[list[list[torch.Tensor]]] = [[] for _ in lengths]
    while any(d < n for d, n in zip(done, lengths)):
        left = [i for i, n in enumerate(lengths) if done[i] < n]
        spans = [(i, done[i], data.draw(st.integers(done[i] + 1, lengths[i]))) for i in left]
        for (i, _, end), out in zip(spans, step(backend, page_size, batch, spans)):
            parts[i].append(out)
            done[i] = end
    chunked = [[torch.cat(pieces) for pieces in zip(*part)] for part in parts]
    assert_same(chunked, whole)


def test_a_sibling_attends_to_pages_that_the_same_step_writes() -> None:
    pool = Pool(page_size=4, kv_heads=2, group=2, pages=8)
    (first,) = sequences(pool, [12], seed=3)
    sibling = Sequence(12, first.pages, first.q, first.k, first.v)
    whole = step(pool.copy().cpu(), 4, [first], [(0, 0, 12)])
    split = step(pool.copy().cpu(), 4, [first, sibling], [(1, 8, 12), (0, 0, 8)])
    assert_same([[torch.cat(pair) for pair in zip(split[1], split[0])]], whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near_the_reference(dtype: torch.dtype) -> None:
    pool = Pool(page_size=4, kv_heads=2, group=3, pages=64, dtype=dtype)
    batch = sequences(pool, [40, 33, 9], seed=1)
    spans = [(0, 0, 39), (1, 0, 32), (2, 0, 9)]
    other = pool.copy()
    for current in (spans, [(0, 39, 40), (1, 32, 33)]):
        expected = step(pool.reference(), 4, batch, current)
        found = step(other.cpu(), 4, batch, current)
        for a, b in zip(found, expected):
            for x, y in zip(a, b):
                assert x.dtype == dtype
                torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)


def test_long_extends_are_computed_in_blocks_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool(page_size=16, kv_heads=2, group=3, pages=16)
    batch = sequences(pool, [150], seed=5)
    whole = step(pool.copy().cpu(), 16, batch, [(0, 0, 150)])
    monkeypatch.setattr(cpu, "SCORE_ELEMENTS", 1)
    blocked = step(pool.copy().cpu(), 16, batch, [(0, 0, 150)])
    assert_same(blocked, whole)


def test_token_slots_follows_the_page_table() -> None:
    inputs = AttentionInputs(
        positions=np.array([6, 0], np.int32),
        lengths=np.array([3, 2], np.int32),
        page_indptr=np.array([0, 3, 4], np.int32),
        page_indices=np.array([7, 2, 9, 1], np.int32),
    )
    assert token_slots(inputs, page_size=4).tolist() == [10, 11, 36, 4, 5]


def test_one_long_row_does_not_pad_the_others() -> None:
    lengths = np.array([30, 4000, 28, 3, 5])
    groups = [group.tolist() for group in bucket_rows(lengths, tokens_limit=64, slack=8)]
    assert groups == [[1], [0, 2], [4, 3]]


@given(st.lists(st.integers(1, 5000), max_size=60))
def test_buckets_hold_every_row_once_within_the_limit(lengths: list[int]) -> None:
    kv_lens = np.array(lengths, dtype=np.int64)
    groups = bucket_rows(kv_lens, tokens_limit=4096, slack=32)
    assert sorted(i for group in groups for i in group.tolist()) == list(range(len(lengths)))
    for group in groups:
        longest = kv_lens[group].max()
        assert kv_lens[group][0] == longest
        assert len(group) == 1 or longest * len(group) <= 4096
        assert (kv_lens[group] >= longest * 0.75).all() or longest - kv_lens[group].min() <= 32


def test_choose_by_device_and_name() -> None:
    assert select.choose("auto", "cpu") is CpuAttention
    assert select.choose("cpu", torch.device("cpu")) is CpuAttention
    assert select.choose("reference", "cpu") is ReferenceAttention
    assert select.choose("auto", "cuda") is ReferenceAttention
    with pytest.raises(ConfigError, match="needs device cpu, not cuda"):
        select.choose("cpu", "cuda")
    with pytest.raises(ConfigError, match="unknown attention backend 'flash'"):
        select.choose("flash", "cpu")
