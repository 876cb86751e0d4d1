"""PrefixCache through its verbs."""

from __future__ import annotations

import pytest

from radixserve.cache.prefix import PrefixCache
from tests.cache_driver import acquired, assert_no_leak, cache_of, ids, keep


def test_siblings_of_one_step_share_whole_pages_and_copy_in_the_next() -> None:
    cache = cache_of(12, 4)
    first = acquired(cache, *range(11))
    cache.commit(first, first.key, 11, 0)
    second = acquired(cache, *range(11))
    assert second.matched == 8
    assert second.pages[:2].tolist() == first.pages[:2].tolist()
    cache.commit(first, first.key, 11, 11)
    assert cache.peek("", ids(*range(12))) == 8  # published in this step, not written before it
    step = cache.begin_step()
    third = acquired(cache, *range(10), 99)
    (order,) = third.take_copies()
    assert third.matched == 10
    assert (order.source, order.destination, order.n) == (first.pages[2], third.pages[2], 2)
    cache.release(first)
    cache.release(second)
    cache.release(third)
    assert cache.locked_pages == 3  # the source and its path, until the step has been applied
    cache.end_step(step)
    assert_no_leak(cache)


def test_nine_equal_prompts_compute_each_page_once() -> None:
    """Whoever computes the next chunk publishes it; after a failure to lead, another one does."""
    cache = cache_of(600, 16)
    prompts = [(*range(1000), 5000 + i, *range(2000, 2010)) for i in range(9)]
    leases = [acquired(cache, *prompt) for prompt in prompts]
    computed = [0] * 9
    total = 0
    while any(done < 1011 for done in computed):
        step = cache.begin_step()
        for i in [*range(step % 9, 9), *range(step % 9)]:
            if computed[i] == 1011:
                continue
            start = cache.advance(leases[i], computed[i])
            end = min(start + 128, 1011)
            end -= end % 16 if end < 1011 else 0
            cache.commit(leases[i], leases[i].key, end, start)
            leases[i].take_copies()
            total += end - start
            computed[i] = end
        cache.end_step(step)
    assert total <= 1000 + 9 * (11 + 16)
    for lease in leases:
        cache.release(lease)
    assert_no_leak(cache)


def test_advance_gives_back_what_another_has_computed_and_replaces_a_worse_copy() -> None:
    cache = cache_of(20, 4)
    keep(cache, 0, 1)
    lease = acquired(cache, *range(12))
    assert lease.matched == 2
    keep(cache, 0, 1, 2)
    assert cache.advance(lease, 2) == 3
    assert cache.leased_pages == 3
    keep(cache, *range(10))
    assert cache.advance(lease, 3) == 10
    assert cache.leased_pages == 1
    (order,) = lease.take_copies()
    assert (order.destination, order.n) == (lease.pages[2], 2)
    assert cache.advance(lease, 10) == 10
    cache.release(lease)
    cache.end_step(cache.begin_step() - 1)
    assert_no_leak(cache)


def test_limit_stays_in_force_and_recomputed_pages_are_the_lease_s_own() -> None:
    cache = cache_of(20, 4)
    keep(cache, *range(12))
    lease = acquired(cache, *range(12), limit=0)
    assert lease.matched == 0
    assert cache.advance(lease, 0) == 0
    cached = acquired(cache, *range(13))
    assert not set(lease.pages.tolist()) & set(cached.pages.tolist())
    cache.commit(lease, lease.key, 8, 0)  # the tree has them, and they are about to be written
    assert cache.leased_pages == 4
    cache.begin_step()
    assert cache.advance(lease, 8) == 8
    assert lease.pages[:2].tolist() == cached.pages[:2].tolist()
    assert cache.leased_pages == 2
    part = acquired(cache, *range(12), limit=6)
    assert part.matched == 6
    assert cache.advance(part, 6) == 6
    for held in (lease, cached, part):
        cache.release(held)
    assert_no_leak(cache)


def test_equal_decode_tails_end_in_one_copy() -> None:
    cache = cache_of(12, 4)
    a, b = acquired(cache, 0, 1), acquired(cache, 0, 1)
    for n in (2, 3, 4, 6):
        for lease in (a, b):
            assert cache.grow(lease, n)
            cache.commit(lease, ids(*range(n)), n, n)
    assert a.pages[0] == b.pages[0]
    assert a.pages[1] != b.pages[1]
    cache.release(a)
    cache.release(b)
    assert cache.evictable_pages == 2
    cache.begin_step()
    assert cache.peek("", ids(*range(8))) == 6
    assert_no_leak(cache)


def test_a_lease_whose_tail_another_has_filled_first_moves_onto_the_page() -> None:
    cache = cache_of(12, 4)
    slow, fast = acquired(cache, 0, 1), acquired(cache, 0, 1)
    cache.commit(slow, slow.key, 2, 2)
    step = cache.begin_step()
    reader = acquired(cache, 0, 1, 99)
    (order,) = reader.take_copies()
    assert order.source == slow.pages[0]
    for lease in (fast, slow):
        assert cache.grow(lease, 9)
        cache.commit(lease, ids(*range(8)), 8, 8)
    assert slow.pages[:2].tolist() == fast.pages[:2].tolist()
    assert order.source not in slow.pages
    assert cache.locked_pages == 3  # the two pages, and the old tail until it has been copied
    cache.end_step(step)
    assert cache.locked_pages == 2
    for lease in (slow, fast, reader):
        cache.release(lease)
    assert cache.evictable_pages == 2
    assert_no_leak(cache)


def test_nothing_is_matched_behind_a_published_tail() -> None:
    cache = cache_of(12, 4)
    lease = acquired(cache, *range(7))
    cache.commit(lease, lease.key, 2, 2)
    keep(cache, *range(8))
    own = lease.pages.tolist()
    assert cache.advance(lease, 2) == 2
    assert lease.pages.tolist() == own
    cache.release(lease)
    assert_no_leak(cache)


def test_a_neighbour_is_copied_while_the_nearest_page_is_not_yet_written() -> None:
    cache = cache_of(12, 4)
    keep(cache, 0, 1, 9, 9)
    now = acquired(cache, 0, 1, 2, 4)
    cache.commit(now, now.key, 4, 2)
    between = acquired(cache, 0, 1, 2, 8)
    cache.commit(between, between.key, 4, 2)
    assert cache.peek("", ids(0, 1, 2, 3, 0)) == 2
    cache.begin_step()
    assert cache.peek("", ids(0, 1, 2, 3, 0)) == 3


@pytest.mark.parametrize("side", [-1, 1])
def test_a_page_is_copied_across_many_that_are_not_yet_written(side: int) -> None:
    cache = cache_of(100, 4)
    keep(cache, 0, 1, 50 + side * 45, 9)
    for number in range(1, 41):
        now = acquired(cache, 0, 1, 50 + side * number, 4)
        cache.commit(now, now.key, 4, 2)
    assert cache.peek("", ids(0, 1, 50, 3, 0)) == 2


def test_a_partial_leaf_goes_once_a_longer_page_is_there_and_nobody_needs_it() -> None:
    cache = cache_of(12, 4)
    keep(cache, 0, 1)
    keep(cache, 0, 1, 2)
    assert cache.evictable_pages == 1
    step = cache.begin_step()
    reader = acquired(cache, 0, 1, 2, 9)
    reader.take_copies()
    keep_without_steps(cache, 0, 1, 2, 3, 4)
    assert cache.locked_pages == 1  # the shorter leaf, while the copy is to come
    cache.end_step(step)
    cache.release(reader)
    assert cache.evictable_pages == 2
    assert_no_leak(cache)


def keep_without_steps(cache: PrefixCache, *tokens: int) -> None:
    lease = acquired(cache, *tokens, limit=0)
    cache.commit(lease, lease.key, len(tokens), len(tokens))
    cache.release(lease)


def test_a_tail_that_fills_up_becomes_the_page_while_readers_copy_from_it() -> None:
    cache = cache_of(12, 4)
    writer = acquired(cache, *range(6))
    cache.commit(writer, writer.key, 6, 6)
    step = cache.begin_step()
    reader = acquired(cache, *range(6), 77)
    (order,) = reader.take_copies()
    assert cache.grow(writer, 9)
    cache.commit(writer, ids(*range(9)), 9, 6)  # a row of three known tokens, planned now
    assert writer.pages[1] == order.source
    cache.release(writer)
    assert cache.locked_pages == 2
    cache.flush()
    cache.end_step(step)
    cache.begin_step()
    assert cache.peek("", ids(*range(9))) == 8
    cache.release(reader)
    assert_no_leak(cache)


def test_eviction_spares_the_lease_s_own_partial_leaf() -> None:
    cache = cache_of(3, 4)
    writer = acquired(cache, 0, 1)
    cache.commit(writer, writer.key, 2, 2)
    other = acquired(cache, *range(10, 18))
    assert not cache.grow(writer, 5)
    cache.release(other)
    assert cache.grow(writer, 12)
    assert len(set(writer.pages.tolist())) == 3
    cache.release(writer)
    assert cache.evictable_pages == 1
    assert_no_leak(cache)


def test_too_few_pages_change_nothing() -> None:
    cache = cache_of(4, 4)
    keep(cache, *range(8))
    before = (cache.free_pages, cache.evictable_pages)
    assert cache.acquire("", ids(*range(17))) is None
    assert cache.acquire("", ids(*range(100, 108)), reserve_pages=3) is None
    assert cache.acquire("", ids(*range(12)), reserve_pages=2) is None
    assert (cache.free_pages, cache.evictable_pages) == before
    lease = cache.acquire("", ids(*range(12)), reserve_pages=1)
    assert lease is not None
    assert not cache.grow(lease, 17)
    assert len(lease.pages) == 3
    assert cache.grow(lease, 16)
    cache.release(lease)
    assert cache.evicted_tokens == 0
    assert_no_leak(cache)


def test_a_request_as_large_as_the_pool_gives_up_its_copy_to_fit() -> None:
    cache = cache_of(3, 4)
    keep(cache, *range(7))
    whole = cache.acquire("", ids(*range(6), *range(90, 96)))
    assert whole is not None
    assert whole.matched == 4
    assert whole.take_copies() == ()
    cache.release(whole)
    assert_no_leak(cache)


def test_namespaces_share_nothing() -> None:
    cache = cache_of(8, 4)
    keep(cache, *range(9))
    assert cache.peek("salt", ids(*range(9))) == 0
    lease = cache.acquire("salt", ids(*range(9)))
    assert lease is not None
    assert lease.matched == 0
    cache.commit(lease, lease.key, 9, 9)
    cache.release(lease)
    assert cache.evictable_pages == 6
    assert_no_leak(cache)


def test_peek_leaves_the_order_of_eviction_alone() -> None:
    cache = cache_of(2, 4)
    keep(cache, 1, 1, 1, 1)
    keep(cache, 2, 2, 2, 2)
    cache.peek("", ids(1, 1, 1, 1, 1))
    cache.release(acquired(cache, 3))
    assert cache.peek("", ids(2, 2, 2, 2, 2)) == 4
    assert cache.peek("", ids(1, 1, 1, 1, 1)) == 0
    assert cache.evicted_tokens == 4


def test_a_failed_step_takes_along_what_it_published() -> None:
    cache = cache_of(12, 4)
    keep(cache, *range(8))
    failed = cache.begin_step()
    lease = acquired(cache, *range(20))
    cache.commit(lease, lease.key, 12, 8)
    cache.begin_step()
    follower = acquired(cache, *range(14))
    assert follower.matched == 12
    cache.commit(lease, lease.key, 20, 12)
    with pytest.raises(RuntimeError, match="still locked"):
        cache.drop_since(failed)
    cache.release(lease)
    cache.release(follower)
    cache.drop_since(failed)
    cache.begin_step()
    assert cache.peek("", ids(*range(20))) == 8
    assert_no_leak(cache)


def test_switched_off_nothing_is_shared_and_pages_still_come_and_go() -> None:
    cache = cache_of(8, 4, enabled=False)
    for _ in range(3):
        lease = acquired(cache, *range(9))
        assert lease.matched == 0
        assert cache.advance(lease, 0) == 0
        cache.commit(lease, lease.key, 9, 0)
        assert cache.grow(lease, 20)
        cache.commit(lease, ids(*range(20)), 20, 20)
        assert cache.peek("", ids(*range(9))) == 0
        assert (cache.locked_pages, cache.leased_pages) == (0, 5)
        cache.release(lease)
    assert cache.free_pages == 8


def test_wrong_arguments_are_refused_with_their_values() -> None:
    cache = cache_of(8, 4)
    for verb in (cache.peek, cache.acquire):
        with pytest.raises(ValueError, match="not 0 bytes"):
            verb("", b"")
        with pytest.raises(ValueError, match="not 7 bytes"):
            verb("", b"1234567")
        with pytest.raises(ValueError, match="not -1"):
            verb("", ids(1), limit=-1)
    lease = acquired(cache, *range(9))
    with pytest.raises(ValueError, match="written 5, length 4"):
        cache.commit(lease, lease.key, 4, 5)
    with pytest.raises(ValueError, match="13 tokens published from 3 pages"):
        cache.commit(lease, ids(*range(13)), 13, 13)
    cache.commit(lease, lease.key, 8, 0)
    with pytest.raises(ValueError, match="computed is 4, of 9 tokens of which 8"):
        cache.advance(lease, 4)
    cache.release(lease)
    for verb in (cache.grow, cache.advance):
        with pytest.raises(RuntimeError, match="released"):
            verb(lease, 9)
    with pytest.raises(ValueError, match="page_size"):
        PrefixCache(8, 0)
