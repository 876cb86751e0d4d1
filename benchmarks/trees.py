"""Radix trees under one interface, for benchmarks/cache.py, and ours under it.

Owns: what a tree is asked for a request, and what of that is timed. Must not know: scenarios.

Ours is called as the scheduler calls it: acquire with all pages of the request, commit, release;
eviction happens inside acquire and grow.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np

from radixserve.cache.lease import Lease
from radixserve.cache.prefix import PrefixCache
from radixserve.plan import Int32

PAGE = 16


class Tree(Protocol):
    """A tree over a pool of tokens. Keys are made by key() and cover whole pages."""

    def key(self, ids: Int32) -> Any:
        """The tree's own form of a prompt, made once, outside of what is timed."""

    def match(self, key: Any) -> int:
        """Find the longest prefix; ours takes the lock and the pages too, and gives them back."""

    def request(self, key: Any) -> tuple[int, int]:
        """A whole request: find, lock, make room, publish, unlock.

        Returns nanoseconds of everything but publishing, and of publishing.
        """

    def evict(self, pages: int) -> int:
        """Nanoseconds to make room for so many pages in a full pool; the room stays unused."""


class Ours:
    """radixserve's PrefixCache with room for `tokens` tokens."""

    def __init__(self, tokens: int) -> None:
        # One page more: it stands for the request that evict() lets grow.
        self._cache = PrefixCache(tokens // PAGE + 1, PAGE)
        self._grower = self._grow_from(0)
        self._growers = 1

    def key(self, ids: Int32) -> bytes:
        return ids.tobytes()

    def match(self, key: bytes) -> int:
        lease = self._acquire(key)
        matched = lease.matched
        self._cache.release(lease)
        return matched

    def request(self, key: bytes) -> tuple[int, int]:
        cache, n = self._cache, len(key) // 4
        step = cache.begin_step()
        t0 = time.perf_counter_ns()
        lease = self._acquire(key)
        lease.take_copies()
        t1 = time.perf_counter_ns()
        cache.commit(lease, key, n, n)
        t2 = time.perf_counter_ns()
        cache.release(lease)
        t3 = time.perf_counter_ns()
        cache.end_step(step)
        return t1 - t0 + t3 - t2, t2 - t1

    def evict(self, pages: int) -> int:
        before = self._cache.evicted_tokens
        t0 = time.perf_counter_ns()
        self._cache.grow(self._grower, (1 + pages) * PAGE)
        t1 = time.perf_counter_ns()
        assert self._cache.evicted_tokens == before + pages * PAGE, "the pool was not full"
        self._cache.release(self._grower)
        self._grower = self._grow_from(self._growers)
        self._growers += 1
        return t1 - t0

    def _grow_from(self, number: int) -> Lease:
        """A request of one page that nobody else has, and that is never published."""
        return self._acquire(np.array([-1, number], np.int32).tobytes())

    def _acquire(self, key: bytes) -> Lease:
        lease = self._cache.acquire("", key)
        assert lease is not None, "the pool is too small for the scenario"
        return lease
