"""A request's pages: its lease, from the cache's verbs.

Owns: when a lease is taken, what of a request is published, when it is given back. Must not know:
the queue, steps, why.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from radixserve.cache.prefix import PrefixCache
from radixserve.log import logger
from radixserve.scheduler.admission import reserved_pages
from radixserve.scheduler.programs import owner_of
from radixserve.scheduler.request import Request
from radixserve.wire.cache import CacheReport


class RequestPages:
    """reserve: share of their remaining output that running requests keep reserved."""

    def __init__(self, cache: PrefixCache, reserve: float) -> None:
        self._cache = cache
        self._reserve = reserve

    def matched(self, request: Request) -> int:
        """Tokens that the cache has of it now."""
        return self._cache.look(request.bookmark)

    def expect(self, request: Request) -> None:
        """It has come: what is kept for its program is kept on."""
        owner = owner_of(request.message)
        if owner is not None:
            self._cache.retention.renew(owner)
        self.matched(request)  # while its prompt is in the processor's cache

    def take(self, request: Request, running: Iterable[Request]) -> bool:
        """Pages for every known token, leaving what the running requests will still need."""
        others = list(running)
        reserve = 0
        if others:
            reserve = reserved_pages([*others, request], self._reserve, self._cache.page_size)
        report = self._report(request)  # first, since acquire may evict what it tells of
        request.lease = self._cache.acquire(
            request.message.namespace,
            request.key,
            limit=request.match_limit,
            reserve_pages=reserve,
        )
        if request.lease is None:
            return False
        if report is not None and request.lease.matched < report.matched:
            matched = request.lease.matched
            report = msgspec.structs.replace(report, matched=matched, reason="no_room", other=None)
        request.cache_report = report
        return True

    def _report(self, request: Request) -> CacheReport | None:
        message = request.message
        if not message.explain or request.cache_report is not None:
            return request.cache_report
        return self._cache.explain(message.namespace, message.prompt, request.match_limit)

    def commit(self, request: Request, length: int, written: int) -> None:
        """Publish tokens [0, length); the step being planned computes those from written on."""
        assert request.lease is not None
        key = request.key
        if length * 4 > len(key):
            key = request.tokens().tobytes()
        self._cache.commit(request.lease, key, length, written)

    def publish_and_drop(self, request: Request, *, is_over: bool = True) -> None:
        """Publish everything computed, and give the lease back. is_over: the request has ended, and
        what it leaves is kept for its program's next calls."""
        if request.lease is not None:
            # The last sampled token has no KV unless a launched step went on past it.
            computed = min(request.computed, request.known_len)
            self.commit(request, computed, computed)
            if request.message.warm and not self._cache.keep_warm(request.lease):
                logger.warning("a prompt of %d tokens is too much to keep warm", request.prompt_len)
            if is_over:
                self._keep(request)
            self.drop(request)

    def drop(self, request: Request) -> None:
        if request.lease is not None:
            self._cache.release(request.lease)
            request.lease = None

    def _keep(self, request: Request) -> None:
        owner, ref = owner_of(request.message), request.message.program
        has_ended = request.standing is not None and request.standing.has_ended
        if owner is not None and ref is not None and request.lease is not None and not has_ended:
            self._cache.retention.keep(request.lease, owner, ref.call, ref.parent)

    def gauges(self) -> dict[str, int]:
        """Of the pool, in tokens, by the names that Gauges has for them."""
        cache = self._cache
        free, evictable = cache.free_pages, cache.evictable_pages
        pages = {
            "kv_tokens": cache.total_pages,
            "free_tokens": free,
            "evictable_tokens": evictable,
            "locked_tokens": cache.total_pages - free - evictable,
        }
        tokens = {name: count * cache.page_size for name, count in pages.items()}
        return tokens | {"evicted_tokens": cache.evicted_tokens}

    @staticmethod
    def own(request: Request) -> int:
        """Pages that nobody else has."""
        return 0 if request.lease is None else len(request.lease.own_pages)
