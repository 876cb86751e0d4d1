"""Groups of rows that share pages, against a search over all pairs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from radixserve.plan import SharedGroup
from radixserve.scheduler.sharing import MAX_LOOKED_AT, MAX_QUERIES, MIN_TOKENS, shared_groups


def groups_of(
    tables: list[list[int]], positions: list[int], page_size: int, lengths: list[int] | None = None
) -> tuple[SharedGroup, ...]:
    indptr = np.cumsum([0, *(len(table) for table in tables)]).astype(np.int32)
    indices = np.concatenate(tables).astype(np.int32)
    counts = np.array(lengths or [1] * len(tables), np.int32)
    return shared_groups(indptr, indices, np.array(positions, np.int32), counts, page_size)


def test_the_example_of_the_docstring() -> None:
    tables, size = [[7, 2, 4], [7, 2, 5], [7, 3]], MIN_TOKENS
    found = groups_of(tables, [2 * size + 2, 2 * size + 2, size + 6], size)
    assert found == (SharedGroup((0, 1, 2), 0, 1), SharedGroup((0, 1), 1, 2))


def test_nothing_is_shared_within_what_the_step_computes() -> None:
    tables = [[0, 1, 2, 3], [0, 1, 2, 4]]
    assert groups_of(tables, [3 * MIN_TOKENS, 3 * MIN_TOKENS], MIN_TOKENS)[0].end == 3
    assert groups_of(tables, [3 * MIN_TOKENS, 3 * MIN_TOKENS - 1], MIN_TOKENS)[0].end == 2
    assert groups_of(tables, [3 * MIN_TOKENS, MIN_TOKENS - 1], MIN_TOKENS) == ()


def test_rows_with_many_queries_stay_alone() -> None:
    tables, positions = [[0, 1], [0, 2], [0, 3]], [MIN_TOKENS] * 3
    found = groups_of(tables, positions, MIN_TOKENS, [1, MAX_QUERIES + 1, MAX_QUERIES])
    assert found == (SharedGroup((0, 2), 0, 1),)


def test_equal_rows_are_one_group() -> None:
    table = list(range(10))
    assert groups_of([table] * 5, [160] * 5, 16) == (SharedGroup((0, 1, 2, 3, 4), 0, 10),)


def test_of_very_long_tables_groups_end_a_few_pages_early() -> None:
    """Two families of 32 rows on 300 pages that all share, nested 40 pages further."""
    tables = [
        [*range(300), *range(1000 + 100 * (row % 2), 1040 + 100 * (row % 2)), 5000 + row]
        for row in range(64)
    ]
    outer, *inner = groups_of(tables, [340 * 16 + 3] * 64, 16)
    stride = 1 + 64 * 340 // MAX_LOOKED_AT
    assert (outer.rows, outer.begin) == (tuple(range(64)), 0)
    assert 300 - stride < outer.end <= 300
    assert [group.rows for group in inner] == [tuple(range(0, 64, 2)), tuple(range(1, 64, 2))]
    assert all(group.begin == outer.end and 340 - stride < group.end <= 340 for group in inner)


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[list[int]], list[int], int]:
    page_size = draw(st.sampled_from([1, 16, 64, 100]))
    numbers = iter(range(10**6))
    paths: list[list[int]] = [[]]
    for _ in range(draw(st.integers(1, 8))):
        grown = [next(numbers) for _ in range(draw(st.integers(1, 9)))]
        paths.append(draw(st.sampled_from(paths)) + grown)
    rows = draw(st.lists(st.sampled_from(paths), min_size=1, max_size=12))
    # A row ends in a page of its own, which its position lies in.
    tables = [[*path, next(numbers)] for path in rows]
    positions = [len(path) * page_size + draw(st.integers(0, page_size - 1)) for path in rows]
    return tables, positions, page_size


def common(one: list[int], other: list[int]) -> int:
    n = 0
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    return n


@given(forest=forests())
def test_groups_are_true_contiguous_and_miss_nothing_large(
    forest: tuple[list[list[int]], list[int], int],
) -> None:
    tables, positions, page_size = forest
    found = groups_of(tables, positions, page_size)
    reached = [0] * len(tables)
    for group in found:
        assert len(group.rows) >= 2
        assert (group.end - group.begin) * page_size >= MIN_TOKENS
        first = tables[group.rows[0]]
        for row in group.rows:
            assert reached[row] == group.begin
            reached[row] = group.end
            assert tables[row][: group.end] == first[: group.end]
            assert group.end * page_size <= positions[row]
    for one in range(len(tables)):
        for other in range(one):
            shared = common(tables[one], tables[other])
            missed = shared - max(min(reached[one], reached[other]), 0)
            assert missed * page_size < MIN_TOKENS + page_size, (one, other, found)
