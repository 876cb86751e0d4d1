"""PrefixCache in the fault cases known from the field, by their numbers."""

from __future__ import annotations

import random

import pytest

from tests.cache_driver import acquired, assert_no_leak, cache_of, ids, keep
from tests.cache_published import common


def test_c01_what_is_leased_is_locked_to_its_last_page() -> None:
    cache = cache_of(10, 4)
    keep(cache, *range(32))
    assert (cache.locked_pages, cache.evictable_pages) == (0, 8)
    lease = acquired(cache, *range(33))
    assert lease.matched == 32
    assert cache.flush() == 0
    assert cache.acquire("", ids(*range(100, 112))) is None  # would need one of the 8
    assert (cache.locked_pages, cache.evictable_pages, cache.leased_pages) == (8, 0, 1)
    cache.release(lease)
    assert cache.locked_pages == 0
    assert cache.flush() == 32
    assert_no_leak(cache)


def test_c02_a_duplicate_prefix_is_swapped_before_it_is_freed() -> None:
    cache = cache_of(40, 4)
    prompt = tuple(range(64))
    a, b = acquired(cache, *prompt), acquired(cache, *prompt)
    assert a.matched == b.matched == 0
    for end in range(16, 65, 16):  # both compute the same chunks, and publish only afterwards
        cache.begin_step()
        cache.commit(a, a.key, end, end)
        own = b.pages[: end // 4].tolist()
        cache.commit(b, b.key, end, end)
        assert b.pages[: end // 4].tolist() == a.pages[: end // 4].tolist()
        assert not set(own[-4:]) & set(b.pages.tolist())
    assert (cache.locked_pages, cache.leased_pages) == (16, 0)
    fillers = [acquired(cache, *range(100 + i, 112 + i)) for i in range(6)]
    taken = {page for lease in fillers for page in lease.pages.tolist()}
    assert not taken & set(b.pages.tolist())
    for lease in (a, b, *fillers):
        cache.release(lease)
    assert_no_leak(cache)


@pytest.mark.parametrize("out", [1, 2, 40])
@pytest.mark.parametrize("is_kept", [True, False])
def test_c04_one_owner_for_each_page_whenever_a_request_ends(out: int, is_kept: bool) -> None:
    cache = cache_of(60, 1)
    tokens = tuple(range(10))
    lease = acquired(cache, *tokens)
    for end in (4, 8, 10):
        computed = cache.advance(lease, end - 1 if end == 10 else end - 4) if end < 10 else 8
        cache.commit(lease, lease.key, end, computed)
        cache.begin_step()
    for n in range(10, 10 + out):
        tokens += (n,)
        assert cache.grow(lease, n + 1)
        cache.begin_step()
    if is_kept:
        cache.commit(lease, ids(*tokens), 9 + out, 9 + out)
    cache.release(lease)
    assert cache.evictable_pages == (9 + out if is_kept else 10)
    assert_no_leak(cache)
    with pytest.raises(RuntimeError, match="released"):
        cache.release(lease)
    assert cache.free_pages == 60


@pytest.mark.parametrize("size", [2, 4, 16])
def test_c05_a_match_is_exact_to_the_token_at_every_length(size: int) -> None:
    for length in (1, size - 1, size, size + 1, 2 * size):
        for shared in (size - 1, size, size + 1):
            cache = cache_of(12, size)
            keep(cache, *range(length))
            prompt = (*range(shared), *range(1000, 1000 + size))
            lease = acquired(cache, *prompt)
            assert lease.matched == min(length, shared)
            (*copies,) = lease.take_copies()
            assert [order.n for order in copies] == [n for n in [lease.matched % size] if n]
            cache.release(lease)
            cache.end_step(cache.begin_step() - 1)
            assert_no_leak(cache)


@pytest.mark.parametrize("size", [2, 4, 16])
def test_c05_random_prompts_over_four_letters(size: int) -> None:
    rng = random.Random(size)
    cache = cache_of(1024, size)
    seen: list[tuple[int, ...]] = []
    for _ in range(200):
        prompt = tuple(rng.randrange(4) for _ in range(rng.randrange(1, 3 * size)))
        best = max((common(prompt, old) for old in seen), default=0)
        assert cache.peek("", ids(*prompt)) == min(best, len(prompt) - 1)
        keep(cache, *prompt)
        seen.append(prompt)
    assert cache.evicted_tokens == 0
    assert_no_leak(cache)


@pytest.mark.parametrize("size", [1, 16])
def test_c10_a_whole_prompt_in_the_cache_leaves_one_token_to_compute(size: int) -> None:
    for length in {max(2 * size - 1, 1), 2 * size, 2 * size + 1}:
        cache = cache_of(16, size)
        keep(cache, *range(length))
        for _ in range(2):
            lease = acquired(cache, *range(length))
            assert lease.matched == length - 1
            assert len(lease.pages) == -(-length // size)
            cache.release(lease)
        extended = acquired(cache, *range(length + 3))
        prefix = acquired(cache, *range(length - size)) if length > size else None
        assert extended.matched == length
        if prefix is not None:
            assert prefix.matched == length - size - 1
            cache.release(prefix)
        cache.release(extended)
        assert_no_leak(cache)


@pytest.mark.parametrize("size", [1, 4, 16])
def test_c11_the_next_turn_finds_the_answer_of_the_last(size: int) -> None:
    cache = cache_of(400, size)
    turn = tuple(range(130))
    lease = acquired(cache, *turn[:90])
    cache.commit(lease, lease.key, 90, 0)
    cache.begin_step()
    cache.commit(lease, lease.key, 90, 90)
    for n in range(91, 130):  # the token sampled last has no KV
        assert cache.grow(lease, n)
        cache.begin_step()
    cache.commit(lease, ids(*turn), 129, 129)
    cache.release(lease)
    cache.begin_step()
    assert acquired(cache, *turn, *range(500, 530)).matched == 129
