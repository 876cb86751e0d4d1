"""Small steps of a request through the prefix cache, for tests."""

from __future__ import annotations

import numpy as np

from radixserve.cache.lease import Lease
from radixserve.cache.prefix import PrefixCache


def ids(*tokens: int) -> bytes:
    return np.array(tokens, dtype=np.int32).tobytes()


def cache_of(pages: int, page_size: int, *, enabled: bool = True) -> PrefixCache:
    cache = PrefixCache(pages, page_size, enabled=enabled, audit=True)
    cache.begin_step()
    return cache


def acquired(cache: PrefixCache, *tokens: int, limit: int | None = None) -> Lease:
    lease = cache.acquire("", ids(*tokens), limit=limit)
    assert lease is not None
    return lease


def keep(cache: PrefixCache, *tokens: int) -> None:
    """A request computes all these tokens in a step of its own and ends."""
    lease = acquired(cache, *tokens)
    lease.take_copies()
    cache.end_step(cache.begin_step() - 1)
    cache.commit(lease, ids(*tokens), len(tokens), len(tokens))
    cache.release(lease)
    cache.begin_step()


def assert_no_leak(cache: PrefixCache) -> None:
    assert cache.locked_pages == cache.leased_pages == 0
    assert cache.free_pages + cache.evictable_pages == cache.total_pages
    cache.flush()
    assert cache.free_pages == cache.total_pages
