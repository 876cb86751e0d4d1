"""Cutting a step into items: every token sees every place once, whatever is shared and split."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from radixserve.kernels.triton.work import Work, cut
from radixserve.plan import SharedGroup
from radixserve.scheduler.sharing import shared_groups

PAGE = 8


def int32(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


def seen_places(work: Work, indptr: np.ndarray, indices: np.ndarray) -> Counter:
    """How often each token attends to each (page, offset), causality left to the kernel."""
    found: Counter = Counter()
    for item in range(work.items):
        first, count = work.firsts[item], work.counts[item]
        for token in work.queries[first : first + count].tolist():
            for place in range(work.begins[item], work.ends[item]):
                page = indices[work.tables[item] + place // PAGE]
                found[token, int(page), place % PAGE] += 1
    return found


def test_the_example_of_the_module() -> None:
    work = cut(
        int32([9, 10]),
        int32([1, 1]),
        int32([0, 3, 6]),
        (SharedGroup((0, 1), 0, 2),),
        page_size=4,
        queries=4,
    )
    items = zip(work.firsts, work.counts, work.begins, work.ends)
    shown = [(work.queries[f : f + n].tolist(), int(b), int(e)) for f, n, b, e in items]
    assert sorted(shown) == [([0], 8, 10), ([0, 1], 0, 8), ([1], 8, 11)]
    assert work.merged.tolist() == [0, 1]
    assert work.merge_indptr.tolist() == [0, 2, 4]
    assert sorted(work.parts.tolist()) == [0, 1, 2, 3]


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[int], list[int], list[list[int]]]:
    """Rows on paths of a tree of pages."""
    numbers = iter(range(10**6))
    paths: list[list[int]] = [[]]
    for _ in range(draw(st.integers(0, 3))):
        parent = draw(st.sampled_from(paths))
        paths.append(parent + [next(numbers) for _ in range(draw(st.integers(1, 80)))])
    rows = [draw(st.sampled_from(paths)) for _ in range(draw(st.integers(1, 5)))]
    lengths = [draw(st.sampled_from([1, 1, 3, 17])) for _ in rows]
    positions = [len(path) * PAGE + draw(st.integers(0, 20)) for path in rows]
    tables = [
        path + [next(numbers) for _ in range(-(-(p + n) // PAGE) - len(path))]
        for path, p, n in zip(rows, positions, lengths)
    ]
    return positions, lengths, tables


@given(
    step=steps(),
    queries=st.integers(1, 9),
    few=st.integers(0, 3),
    window=st.sampled_from([0, 1, 30]),
    wanted=st.sampled_from([1, 12]),
)
def test_every_token_sees_its_places_once(
    step: tuple[list[int], list[int], list[list[int]]],
    queries: int,
    few: int,
    window: int,
    wanted: int,
) -> None:
    positions, lengths, tables = step
    indptr = int32(np.cumsum([0, *map(len, tables)]).tolist())
    indices = int32([page for table in tables for page in table])
    rows = int32(positions), int32(lengths)
    groups = shared_groups(indptr, indices, *rows, PAGE)
    options = {"queries": queries, "few": few, "window": window, "wanted": wanted}
    work = cut(*rows, indptr, groups, page_size=PAGE, **options)

    found = seen_places(work, indptr, indices)
    assert set(found.values()) == {1}
    token = 0
    for position, length, table in zip(positions, lengths, tables):
        for place in range(position, position + length):
            oldest = max(0, place - window + 1) if window else 0
            for seen in range(oldest, place + 1):
                assert (token, table[seen // PAGE], seen % PAGE) in found
            token += 1

    assert (work.counts <= queries).all()
    assert (work.counts[: work.large] > few).all()
    assert (work.counts[work.large :] <= few).all()
    assert (work.clears <= work.ends).all()
    check_parts(work, token)


def check_parts(work: Work, tokens: int) -> None:
    """A token is written once, or in parts that are all merged; an item has one of both kinds."""
    whole = Counter(work.queries[work.parts < 0].tolist())
    assert set(whole.values()) <= {1}
    assert set(whole) | set(work.merged.tolist()) == set(range(tokens))
    assert set(whole).isdisjoint(work.merged.tolist())
    owner = dict(zip(work.parts.tolist(), work.queries.tolist()))
    for n, token in enumerate(work.merged.tolist()):
        for part in range(work.merge_indptr[n], work.merge_indptr[n + 1]):
            assert owner[part] == token
    assert work.part_count == work.merge_indptr[-1] == np.count_nonzero(work.parts >= 0)
    for item in range(work.items):
        first, count = work.firsts[item], work.counts[item]
        assert len(set((work.parts[first : first + count] < 0).tolist())) == 1
