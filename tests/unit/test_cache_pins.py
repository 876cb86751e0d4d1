"""Pages that wait to be copied from: held to the page, and no more used for it."""

from __future__ import annotations

import pytest

from radixserve.cache.prefix import PrefixCache
from tests.cache_driver import acquired, assert_no_leak, cache_of, ids


def kept_leaf(cache: PrefixCache, *tokens: int) -> list[int]:
    """Keep tokens that make whole pages; returns these pages."""
    lease = acquired(cache, *tokens)
    pages = lease.pages.tolist()
    cache.commit(lease, lease.key, len(tokens), len(tokens))
    cache.release(lease)
    cache.begin_step()
    return pages


def test_a_copy_takes_one_page_of_a_long_leaf_for_as_long_as_it_is_to_come() -> None:
    cache = cache_of(12, 4)
    pages = kept_leaf(cache, *range(16))
    reader = acquired(cache, 0, 1, 99)
    assert (cache.stats().nodes, cache.locked_pages, cache.evictable_pages) == (1, 1, 3)
    step = cache.begin_step()
    (order,) = reader.take_copies()
    assert (order.source, order.n) == (pages[0], 2)
    cache.release(reader)
    assert cache.locked_pages == 1
    cache.end_step(step)
    assert (cache.stats().nodes, cache.locked_pages) == (1, 0)
    assert cache.peek("", ids(*range(16), 0)) == 16
    assert_no_leak(cache)


def test_what_is_behind_the_page_to_copy_can_go_and_the_page_can_not_before_it_is_copied() -> None:
    cache = cache_of(5, 4)
    pages = kept_leaf(cache, *range(16))
    reader = acquired(cache, 0, 1, 99)
    step = cache.begin_step()
    (order,) = reader.take_copies()
    rest = acquired(cache, *range(200, 212))
    assert set(rest.pages.tolist()) == set(pages[1:])
    assert (cache.available_pages, cache.locked_pages) == (0, 1)
    assert not cache.grow(reader, 5)
    cache.flush()
    assert cache.peek("", ids(*range(16))) == 4
    cache.release(reader)
    cache.end_step(step)
    assert cache.available_pages == 2
    assert cache.grow(rest, 20)
    assert order.source in rest.pages
    assert cache.evicted_tokens == 16
    cache.release(rest)
    assert_no_leak(cache)


def test_to_be_copied_from_is_no_use() -> None:
    cache = cache_of(6, 4)
    kept_leaf(cache, 1, 1, 1, 1)
    kept_leaf(cache, 2, 2, 2, 2)
    kept_leaf(cache, 3, 3, 3, 3)
    for taken_back in (True, False):
        step = cache.begin_step()
        reader = acquired(cache, 2, 2, 9)
        assert taken_back or len(reader.take_copies()) == 1
        cache.release(reader)
        cache.end_step(step)
    cache.release(acquired(cache, *range(10, 30)))
    assert cache.peek("", ids(2, 2, 2, 2, 2)) == 0
    assert cache.peek("", ids(3, 3, 3, 3, 3)) == 4


def test_a_page_that_eviction_had_to_leave_is_the_first_to_go_once_it_is_copied() -> None:
    cache = cache_of(4, 4)
    kept_leaf(cache, 1, 1, 1, 1)
    kept_leaf(cache, 2, 2, 2, 2)
    step = cache.begin_step()
    readers = [acquired(cache, *tokens) for tokens in ((1, 1, 9), (2, 2, 9))]
    assert [len(reader.take_copies()) for reader in readers] == [1, 1]
    assert cache.flush() == 0  # both are put aside, the older one first
    for reader in readers:
        cache.release(reader)
    kept_leaf(cache, 3, 3, 3, 3)
    cache.end_step(step)
    for gone, kept in ((1, 2), (2, 3)):
        cache.release(acquired(cache, *[-gone] * (4 + 4 * gone)))
        assert cache.peek("", ids(*[gone] * 5)) == 0
        assert cache.peek("", ids(*[kept] * 5)) == 4


def test_a_pin_stays_with_its_page_when_the_leaf_is_cut_or_locked_or_goes_on() -> None:
    cache = cache_of(16, 4)
    pages = kept_leaf(cache, *range(16))
    step = cache.begin_step()
    reader = acquired(cache, 0, 1, 99)
    (order,) = reader.take_copies()
    user = acquired(cache, *range(9), 77)  # cuts the leaf, and locks its upper part
    (second,) = user.take_copies()
    assert (order.source, second.source) == (pages[0], pages[2])
    assert user.pages[:2].tolist() == pages[:2]
    assert cache.locked_pages == 3
    other = acquired(cache, *range(6), 55)  # cuts what is pinned and locked
    assert cache.locked_pages == 3
    for lease in (user, other, reader):
        cache.release(lease)
    assert cache.locked_pages == 3  # the second copy's page, and the path above it
    assert cache.flush() == 4
    cache.end_step(step)
    assert cache.available_pages == 16
    assert_no_leak(cache)


def test_two_copies_of_one_page_hold_it_until_the_last_has_run() -> None:
    cache = cache_of(6, 4)
    kept_leaf(cache, *range(8))
    readers = [acquired(cache, 0, 1, 90 + i) for i in range(2)]
    assert cache.locked_pages == 1
    (root,) = [node for node in cache.listing(None, 1, 9) if node.parent is not None]
    assert root.users == 2
    steps = []
    for reader in readers:
        steps.append(cache.begin_step())
        reader.take_copies()
        cache.release(reader)
    cache.end_step(steps[0])
    assert cache.locked_pages == 1
    cache.end_step(steps[1])
    assert cache.locked_pages == 0
    assert_no_leak(cache)


def test_a_full_pool_of_requests_that_copy_from_each_other_goes_on() -> None:
    """Where no page is to spare a request does without its copy; it never waits for its own pin."""
    cache = cache_of(4, 4)
    kept_leaf(cache, *range(16))
    for i in range(8):
        step = cache.begin_step()
        prompt = (0, 1, *range(100 * i + 100, 100 * i + 114))
        assert cache.acquire("", ids(*prompt, 1)) is None
        lease = acquired(cache, *prompt)
        assert lease.matched == 0
        assert lease.take_copies() == ()
        cache.commit(lease, lease.key, 16, 16)
        cache.release(lease)
        cache.end_step(step)
        step = cache.begin_step()
        small = acquired(cache, *prompt[:9], 1)  # its copy and its page are the last two
        assert small.matched == 9
        assert len(small.take_copies()) == 1
        assert cache.available_pages == 0
        cache.release(small)
        cache.end_step(step)
    assert_no_leak(cache)


def test_a_page_that_is_pinned_already_costs_the_next_request_nothing() -> None:
    cache = cache_of(3, 4)
    kept_leaf(cache, *range(8))
    cache.begin_step()
    reader = acquired(cache, 0, 1, 99)
    assert len(reader.take_copies()) == 1
    cache.release(reader)
    assert (cache.available_pages, cache.locked_pages) == (2, 1)
    for prompt, matched in (
        ((*range(8), 8), 8),  # locks what is pinned, and the page behind it
        ((*range(4), 7, 7, 7, 7, 7), 4),
        ((0, 1, *range(50, 56)), 2),  # copies the same page, with no other to spare
    ):
        lease = acquired(cache, *prompt)
        assert lease.matched == matched
        assert cache.locked_pages + cache.leased_pages + cache.available_pages == 3
        cache.release(lease)


@pytest.mark.parametrize("pool", [2, 3])
def test_a_request_that_fits_to_the_page_is_admitted_beside_a_pin(pool: int) -> None:
    cache = cache_of(pool, 4)
    first = tuple(range(4 * pool - 4))
    kept_leaf(cache, *first[:4])
    if pool == 3:
        beside = acquired(cache, *first[:4], 9)  # what comes next hangs below
        kept_leaf(cache, *first)
        cache.release(beside)
    step = cache.begin_step()
    reader = acquired(cache, 0, 1, 99)
    assert len(reader.take_copies()) == 1
    cache.release(reader)
    lease = acquired(cache, *first, 5)
    assert lease.matched == len(first)
    assert cache.available_pages == 0
    cache.release(lease)
    cache.end_step(step)
    assert_no_leak(cache)


def test_a_page_that_a_request_holds_is_copied_when_no_other_is_to_spare() -> None:
    cache = cache_of(3, 4)
    kept_leaf(cache, *range(4))
    user = acquired(cache, *range(4), 9)
    assert cache.available_pages == 1
    reader = acquired(cache, 0, 1, 99)
    assert reader.matched == 2
    cache.release(user)
    assert (cache.locked_pages, cache.available_pages) == (1, 1)
    cache.release(reader)
    assert_no_leak(cache)
