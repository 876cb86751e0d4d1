"""PageAllocator: each page is free or out, never both."""

from __future__ import annotations

import numpy as np
import pytest

from radixserve.cache.allocator import PageAllocator


def ids(pages: bytes) -> list[int]:
    return np.frombuffer(pages, np.int32).tolist()


def test_pages_go_out_once_and_in_ascending_order() -> None:
    allocator = PageAllocator(5)
    assert ids(allocator.take(3)) == [0, 1, 2]
    assert ids(allocator.take(2)) == [3, 4]
    assert allocator.free == 0


def test_the_page_given_back_last_is_taken_first() -> None:
    allocator = PageAllocator(5)
    pages = allocator.take(5)
    allocator.give(pages[4:12])
    allocator.give(pages[16:])
    assert allocator.free == 3
    assert ids(allocator.take(1)) == [4]
    assert ids(allocator.take(2)) == [1, 2]


def test_more_than_free_is_refused_and_changes_nothing() -> None:
    allocator = PageAllocator(2)
    with pytest.raises(RuntimeError, match="3 pages taken, 2 of 2"):
        allocator.take(3)
    assert ids(allocator.take(2)) == [0, 1]


def test_a_page_freed_twice_is_refused_by_name() -> None:
    allocator = PageAllocator(4, is_checked=True)
    pages = allocator.take(3)
    allocator.give(pages[:4])
    with pytest.raises(RuntimeError, match=r"twice: \[0\]"):
        allocator.give(pages[:4])
    assert allocator.free == 2


def test_more_than_is_out_is_refused_and_changes_nothing() -> None:
    allocator = PageAllocator(4)
    pages = allocator.take(3)
    allocator.give(pages[:8])
    with pytest.raises(RuntimeError, match="3 pages given back, 1 are out"):
        allocator.give(pages)
    assert sorted(allocator.free_pages().tolist()) == [0, 1, 3]


def test_nothing_may_be_taken_and_given() -> None:
    allocator = PageAllocator(1)
    allocator.give(allocator.take(0))
    assert allocator.free == 1


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one page"):
        PageAllocator(0)
