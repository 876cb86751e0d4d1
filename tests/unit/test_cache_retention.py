"""What programs leave between their calls: it goes after all else, and it does go."""

from __future__ import annotations

from radixserve.cache.lease import Lease
from radixserve.cache.prefix import PrefixCache
from radixserve.cache.retention import MOST
from tests.cache_driver import acquired, assert_no_leak, cache_of, ids, keep

PROGRAM = ("", "p")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def keeping(pages: int, page_size: int = 4, share: float = 0.5) -> tuple[PrefixCache, Clock]:
    cache, clock = cache_of(pages, page_size), Clock()
    cache.keep_for_programs(share, 10.0, clock)
    return cache, clock


def leave(
    cache: PrefixCache, *tokens: int, owner: tuple[str, str] = PROGRAM, call="0", parent=""
) -> None:
    """A call of a program computes all these tokens and ends."""
    lease = cache.acquire(owner[0], ids(*tokens))
    assert lease is not None
    lease.take_copies()
    cache.end_step(cache.begin_step() - 1)
    cache.commit(lease, ids(*tokens), len(tokens), len(tokens))
    cache.retention.keep(lease, owner, call, parent)
    cache.release(lease)
    cache.begin_step()


def fill(cache: PrefixCache, pages: int, first: int) -> Lease:
    """A request that nobody shares anything with takes so many pages."""
    return acquired(cache, first, *[9] * (pages * cache.page_size - 1))


def found(cache: PrefixCache, *tokens: int, namespace: str = "") -> int:
    return cache.peek(namespace, ids(*tokens, 99))


def test_what_a_program_left_goes_after_what_was_used_later() -> None:
    cache, _ = keeping(8)
    leave(cache, *[1] * 8)
    keep(cache, *[2] * 8)
    keep(cache, *[3] * 8)
    lease = fill(cache, 6, 50)
    assert [found(cache, *[n] * 8) for n in (1, 2, 3)] == [8, 0, 0]
    cache.release(lease)
    assert_no_leak(cache)


def test_it_refuses_nobody_a_page() -> None:
    cache, _ = keeping(8)
    leave(cache, *[1] * 16)
    assert cache.available_pages == 8
    assert cache.evictable_pages == 4
    lease = fill(cache, 8, 50)
    assert found(cache, *[1] * 16) == 0
    cache.release(lease)
    assert_no_leak(cache)


def test_it_is_kept_for_so_many_seconds_since_the_last_call() -> None:
    cache, clock = keeping(8)
    leave(cache, *[1] * 8)
    keep(cache, *[2] * 8)
    clock.now = 9.0
    cache.retention.renew(PROGRAM)
    clock.now = 18.0
    cache.release(fill(cache, 5, 50))
    assert (found(cache, *[1] * 8), found(cache, *[2] * 8)) == (8, 4)
    keep(cache, *[2] * 8)
    clock.now = 19.0
    cache.release(fill(cache, 6, 60))
    assert (found(cache, *[1] * 8), found(cache, *[2] * 8)) == (0, 8)
    assert len(cache.retention) == cache.retention.pages == 0


def test_a_program_that_has_ended_is_like_all_else() -> None:
    cache, _ = keeping(8)
    leave(cache, *[1] * 8)
    keep(cache, *[2] * 8)
    cache.retention.forget(PROGRAM)
    cache.release(fill(cache, 6, 50))
    assert (found(cache, *[1] * 8), found(cache, *[2] * 8)) == (0, 8)
    assert cache.retention.pages == 0


def test_no_more_than_a_share_is_kept_and_the_oldest_is_let_go() -> None:
    cache, _ = keeping(16, share=0.25)
    for number in range(3):
        leave(cache, *[number] * 8, owner=("", f"p{number}"))
    assert cache.retention.pages == cache.retention.limit == 4
    keep(cache, *[7] * 8)
    cache.release(fill(cache, 12, 50))
    assert [found(cache, *[n] * 8) for n in (0, 1, 2, 7)] == [0, 8, 8, 0]


def test_what_is_larger_than_the_share_is_not_kept_at_all() -> None:
    cache, _ = keeping(16, share=0.25)
    leave(cache, *[1] * 32)
    assert len(cache.retention) == cache.retention.pages == 0


def test_shared_pages_count_once_and_a_call_takes_the_place_of_its_parent() -> None:
    cache, _ = keeping(16)
    leave(cache, *[1] * 8)
    for branch in (2, 3):
        leave(cache, *[1] * 8, *[branch] * 8, call=f"1.{branch}.0", parent="0")
    assert cache.retention.pages == 6
    leave(cache, *[1] * 8, *[2] * 8, *[4] * 4, call="1.2.1", parent="1.2.0")
    assert cache.retention.pages == 7
    cache.retention.forget(PROGRAM)
    assert cache.retention.pages == 0


def test_the_filled_part_of_a_page_is_kept_too() -> None:
    cache, _ = keeping(8)
    leave(cache, *[1] * 6)
    keep(cache, *[2] * 8)
    cache.release(fill(cache, 6, 50))
    assert (found(cache, *[1] * 6), found(cache, *[2] * 8)) == (6, 0)


def test_programs_of_two_namespaces_are_two() -> None:
    cache, _ = keeping(16)
    leave(cache, *[1] * 8, owner=("a", "p"))
    leave(cache, *[1] * 8, owner=("b", "p"))
    cache.retention.forget(("a", "p"))
    assert cache.retention.pages == 2
    cache.release(fill(cache, 14, 50))
    assert found(cache, *[1] * 8, namespace="a") == 0
    assert found(cache, *[1] * 8, namespace="b") == 8


def test_flush_drops_it_and_a_longer_page_hides_no_end() -> None:
    cache, _ = keeping(8)
    leave(cache, *[1] * 6)
    keep(cache, *[1] * 12)  # publishes a page that begins with the partial one
    cache.release(fill(cache, 5, 50))
    assert found(cache, *[1] * 12) >= 4
    cache.flush()
    assert cache.free_pages == 8
    assert cache.retention.pages == 0


def test_the_number_of_ends_is_bounded() -> None:
    cache = PrefixCache(2 * MOST, 1)
    cache.begin_step()
    cache.keep_for_programs(1.0, 10.0, Clock())
    for number in range(MOST + 50):
        leave(cache, 1, number, owner=("", f"p{number}"))
    assert len(cache.retention) == MOST


def test_nothing_is_kept_unless_asked_for() -> None:
    cache = cache_of(8, 4)
    leave(cache, *[1] * 8)
    keep(cache, *[2] * 8)
    cache.release(fill(cache, 6, 50))
    assert (found(cache, *[1] * 8), found(cache, *[2] * 8)) == (0, 8)
