"""A request's pages: its lease, from the cache's verbs.

Owns: when a lease is taken, what of a request is published, when it is given back. Must not know:
the queue, steps, why.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec

from radixserve.cache.prefix import PrefixCache
from radixserve.ints import ceil_div
from radixserve.log import logger
from radixserve.scheduler.admission import reserved_pages
from radixserve.scheduler.programs import owner_of
from radixserve.scheduler.request import Request
from radixserve.wire.cache import CacheReport

RECENT = 32
"""Steps: many end in one moment, and what they leave does not last either."""

MOST_HELD = 4  # steps in a row


class RequestPages:
    """reserve: share of their remaining output that running requests keep reserved. may_pass: a
    later request may go before an earlier one."""

    def __init__(self, cache: PrefixCache, reserve: float, *, may_pass: bool = True) -> None:
        self._cache = cache
        self._reserve = reserve
        self._may_pass = may_pass
        self._step = 0
        # The last step in which a request ended, was held back, or requests had most of the pool.
        self._ended = self._held = self._filled = -RECENT
        self._times_held = 0  # in a row

    def begin_step(self) -> int:
        """A new step is being planned; returns its number."""
        cache = self._cache
        self._step = step = cache.begin_step()
        if 2 * cache.available_pages < cache.total_pages:
            self._filled = step
        return step

    @property
    def is_short(self) -> bool:
        """Whether requests have had more than half of the pool just now. What else is cached does
        not last then, so it matters for whom it is evicted."""
        return self._step - self._filled < RECENT

    def is_short_for(self, tokens: int) -> bool:
        """The same, or that many more have no room beside those that run."""
        return self.is_short or tokens > self._cache.available_pages * self._cache.page_size

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
        """Pages for every known token, leaving what the running requests will still need.

        False: there are not enough, or another step is to pass first.
        """
        others = list(running)
        if others and self._holds_back(request):
            return False
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

    def _holds_back(self, request: Request) -> bool:
        """Whether it would evict what may be wanted in a moment.

        Where pages are short, one that must have most of its prompt computed lets a step pass when
        another has just ended: who waited for that answer will ask on, perhaps for what is cached.
        While others go on to end it is MOST_HELD steps at most.
        """
        if self._step > self._ended + 1 or not self.is_short or not self._may_pass:
            return False
        found, size = self.matched(request), self._cache.page_size
        if 2 * found >= request.known_len:
            return False
        if ceil_div(request.known_len, size) - found // size <= self._cache.free_pages:
            return False
        self._times_held = self._times_held + 1 if self._step == self._held + 1 else 1
        if self._times_held > MOST_HELD:
            return False
        self._held = self._step
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
                self._ended = self._step
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
    def victim(running: Iterable[Request], planned: Container[str]) -> Request | None:
        """Of those that no step names, launched or planned, the one that alone has most pages."""
        victims = (r for r in running if not r.in_flight and r.rid not in planned)
        return max(victims, key=lambda r: (_own(r), r.arrival), default=None)


def _own(request: Request) -> int:
    """Pages that nobody else has."""
    return 0 if request.lease is None else len(request.lease.own_pages)
