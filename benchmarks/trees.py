"""Radix trees under one interface, for benchmarks/cache.py, and ours under it.

Owns: what a tree is asked for a request, and what of that is timed. Must not know: scenarios.

Ours is called as the scheduler calls it: acquire with all pages of the request, commit, release;
eviction happens inside acquire and grow. Where the package's tree is compiled, its sources can be
loaded beside it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import time
import types
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

import radixserve.cache
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

    def __init__(self, tokens: int, make: type[PrefixCache] = PrefixCache) -> None:
        # One page more: it stands for the request that evict() lets grow.
        self._cache = make(tokens // PAGE + 1, PAGE)
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


def as_python() -> type[PrefixCache]:
    """PrefixCache out of its sources, whatever the one is that is loaded; which stays the one that
    others import."""
    loaded = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(_CACHE)}
    finder = _Sources()
    sys.meta_path.insert(0, finder)
    try:
        found: type[PrefixCache] = importlib.import_module(f"{_CACHE}prefix").PrefixCache
        return found
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(_CACHE)]:
            del sys.modules[name]
        sys.modules.update(loaded)
        for name, module in loaded.items():
            setattr(radixserve.cache, name.removeprefix(_CACHE), module)


_CACHE = "radixserve.cache."


class _Sources(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del target
        if not name.startswith(_CACHE) or not path:
            return None
        file = pathlib.Path(path[0]) / f"{name.removeprefix(_CACHE)}.py"
        return importlib.util.spec_from_file_location(name, file)
