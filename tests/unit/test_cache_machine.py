"""The cache under random schedules, against a simulated KV memory.

The world below plays scheduler and executor: it plans steps, launches up to two before it applies
the first, and runs each launched step on a memory in which every slot holds the prefix that was
written there. Pages are wiped when they become free or are handed out, so a page that is read after
it was recycled, read before it was written, or written twice shows as a wrong prefix.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from radixserve.cache.bookmark import Bookmark
from radixserve.cache.prefix import PrefixCache
from tests.cache_driver import ids
from tests.cache_published import Published, Tokens, common
from tests.cache_steps import Running, Step

pytestmark = pytest.mark.timeout(max(300, 2 * settings.default.max_examples))  # of 60 ms each
PAGES = 12
Prefix = tuple[str, Tokens]

BASES: list[Tokens] = [
    (0, 1, 2, 0, 0, 1, 1, 2, 2, 2, 1, 0, 0, 2, 1, 1, 0, 2, 2, 0),
    (0, 1, 2, 0, 1, 1, 1, 1, 0, 2, 2, 1, 0, 0, 0, 2, 1, 2, 0, 1),
]

prompts = st.tuples(st.integers(0, 5), st.integers(0, 20), st.lists(st.integers(0, 2), max_size=4))
picks = st.integers(0, 5)
rarely = st.sampled_from([""] * 8 + ["flush", "fail"])


class World(RuleBasedStateMachine):
    page_size = 4

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(PAGES, self.page_size, audit=True)
        self.memory: list[list[Prefix | str | None]] = [
            [None] * self.page_size for _ in range(PAGES)
        ]
        self.running: list[Running] = []
        self.history = list(BASES)
        self.plan: Step | None = None
        self.in_flight: list[Step] = []
        self.published = Published(self.page_size)
        self.evicted = 0
        self.waiting: deque[tuple[Bookmark, int | None]] = deque(maxlen=4)

    def forget_dropped(self) -> None:
        """Start again from what the tree holds, after something was dropped from it."""
        self.published.prefixes = {}
        stamps = self.cache._tree.stamps.by_page
        for namespace, tokens, pages in self.paths():
            for i, page in enumerate(pages):
                prefix = tokens[: (i + 1) * self.page_size]
                self.published.prefixes[namespace, prefix] = int(stamps[page])

    def paths(self) -> list[tuple[str, Tokens, list[int]]]:
        """Every path of the tree: namespace, tokens, pages."""
        paths = []
        pending = [(root, (), []) for root in self.cache._tree.roots.values()]
        while pending:
            node, tokens, pages = pending.pop()
            tokens += tuple(np.frombuffer(node.key, dtype=np.int32).tolist())
            pages = pages + np.frombuffer(node.pages, dtype=np.int32).tolist()
            paths.append((node.namespace, tokens, pages))
            pending += [(child, tokens, pages) for child in node.all_children()]
        return paths

    def wipe(self, pages: list[int]) -> None:
        for page in pages:
            self.memory[page] = [None] * self.page_size

    def after_verb(self) -> None:
        self.wipe(self.cache._allocator.free_pages().tolist())
        if self.cache.evicted_tokens != self.evicted:
            self.evicted = self.cache.evicted_tokens
            self.forget_dropped()
        self.look_again()

    def look_again(self) -> None:
        """Looking on from where a look has ended finds what looking from the root does."""
        for mark, limit in self.waiting:
            assert self.cache.look(mark) == self.cache.peek(mark.namespace, mark.key, limit)

    # Planning

    @initialize()
    def begin_step(self) -> None:
        number = self.cache.begin_step()
        assert number > self.published.step
        self.published.step = number
        self.plan = Step(number)
        self.look_again()

    @rule(overlap=st.booleans(), publish=st.booleans())
    def next_step(self, overlap, publish) -> None:
        """Launch what is planned; apply what was launched before, or all that was."""
        self.launch()
        while len(self.in_flight) > overlap:
            for req in self.apply():
                if publish:
                    self.commit_computed(req)
        self.memory_is_right()
        self.begin_step()

    @precondition(lambda self: len(self.running) < 6)
    @rule(
        prompt=prompts,
        namespace=st.sampled_from(["", "", "other"]),
        limit=st.none() | st.integers(0, 20),
        reserve=st.integers(0, 2),
        n=st.sampled_from([20, 20, 0, 5]),
    )
    def acquire(self, prompt, namespace, limit, reserve, n) -> None:
        """Admit a request, and plan its first n prompt tokens at once."""
        base, cut, suffix = prompt
        longest = min(20, 4 * self.page_size + 4)
        tokens = self.history[base % len(self.history)][:longest][:cut] + tuple(suffix) or (0,)
        cap = len(tokens) - 1 if limit is None else min(len(tokens) - 1, limit)
        expected = self.published.expected(namespace, tokens[:cap])
        counts = self.counts()
        available = self.cache.available_pages
        peeked = self.cache.peek(namespace, ids(*tokens), limit)
        assert expected.allows(peeked)
        self.waiting.append((Bookmark(namespace, ids(*tokens), limit), limit))
        lease = self.cache.acquire(namespace, ids(*tokens), limit=limit, reserve_pages=reserve)
        if lease is None:
            assert self.counts() == counts
            assert -(-len(tokens) // self.page_size) + reserve > available
            return
        assert self.cache.available_pages >= reserve
        is_tight = self.cache.available_pages == reserve
        assert lease.matched == peeked or (is_tight and lease.matched == expected.whole)
        assert len(lease.pages) == -(-len(tokens) // self.page_size)
        req = Running(lease, namespace, tokens, len(tokens), cap, lease.matched)
        req.published = expected.whole // self.page_size
        self.wipe(lease.pages[req.published :].tolist())
        self.running.append(req)
        self.after_verb()
        if n:
            self.plan_chunk(req, n, publish=True)

    @precondition(lambda self: self.can_plan(in_prompt=True))
    @rule(pick=picks, n=st.integers(0, 9), publish=st.booleans(), take=st.booleans())
    def chunk(self, pick, n, publish, take) -> None:
        """Match again, then plan up to n prompt tokens, or none: the request goes on waiting."""
        req = self.pick(pick, self.plannable(in_prompt=True))
        self.advance(req)
        if take:
            self.take_copies(req)
        self.plan_chunk(req, n, publish=publish)

    def plan_chunk(self, req: Running, n: int, *, publish: bool) -> None:
        start, end = req.computed, min(req.computed + n, req.prompt)
        if end < req.prompt:
            end -= end % self.page_size
        if end <= start:
            return
        if publish:
            self.cache.commit(req.lease, ids(*req.tokens), end, start)
            self.publish(req, end, start)
        self.take_copies(req)
        self.add_row(req, start, end - start)

    def advance(self, req: Running) -> None:
        self.publish(req, req.computed - req.computed % self.page_size, req.computed)
        expected = self.published.expected(req.namespace, req.tokens[: req.cap])
        before = req.computed
        req.computed = self.cache.advance(req.lease, before)
        self.after_verb()
        if expected.whole + expected.part > before:
            is_unused = req.computed == before and not expected.is_certain
            assert expected.allows(req.computed) or (is_unused and expected.whole <= before)
        else:
            assert req.computed == before
        req.published = max(req.published, expected.whole // self.page_size)

    def publish(self, req: Running, end: int, written: int) -> None:
        req.published = self.published.pages(req.namespace, req.tokens, req.published, end, written)

    @precondition(lambda self: self.can_plan(in_prompt=False))
    @rule(
        pick=picks,
        new=st.lists(st.integers(0, 2), min_size=1, max_size=3),
        follow=st.booleans(),
        publish=st.booleans(),
    )
    def decode(self, pick, new, follow, publish) -> None:
        """A decode row, or a few forced tokens, whose ids may be published at once.

        follow: generate what another request has had before, so that outputs meet in the tree.
        """
        req = self.pick(pick, self.plannable(in_prompt=False))
        if follow:
            longer = [t for t in self.history if common(t, req.tokens) == len(req.tokens)]
            new = next((t[len(req.tokens) :][: len(new)] for t in longer), ()) or new
        start, end = req.computed, req.computed + len(new)
        had, counts, available = len(req.lease.pages), self.counts(), self.cache.available_pages
        if not self.cache.grow(req.lease, end):
            assert self.counts() == counts
            assert -(-end // self.page_size) - had > available
            return
        self.wipe(req.lease.pages[had:].tolist())
        self.after_verb()
        req.tokens += tuple(new)
        if publish:
            self.cache.commit(req.lease, ids(*req.tokens), end, start)
            self.publish(req, end, start)
        self.take_copies(req)
        self.add_row(req, start, len(new))

    def add_row(self, req: Running, start: int, n: int) -> None:
        assert self.plan is not None
        self.plan.rows.append((req, start, n, req.lease.pages.tolist()))
        req.is_planned = True
        req.computed = start + n
        self.after_verb()

    def take_copies(self, req: Running) -> None:
        assert self.plan is not None
        for order in req.lease.take_copies():
            self.plan.copies.append((order.source, order.destination, order.n))
            req.is_planned = True
        assert req.lease.take_copies() == ()

    # Running

    def launch(self) -> None:
        step, self.plan = self.plan, None
        assert step is not None
        for source, destination, n in step.copies:
            for slot in range(n):
                value = self.memory[source][slot]
                assert value is not None
                assert self.memory[destination][slot] in (None, value)
                self.memory[destination][slot] = value
                step.written.append((destination, slot))
        for req, start, n, table in step.rows:
            for t in range(start, start + n):
                page, slot = table[t // self.page_size], t % self.page_size
                assert self.memory[page][slot] is None, "a slot is written twice"
                self.memory[page][slot] = (req.namespace, req.tokens[: t + 1])
                step.written.append((page, slot))
        for req, start, n, table in step.rows:
            assert table == req.lease.pages.tolist()
            self.check_table(req, table, start + n)
            req.launched = start + n
            req.in_flight += 1
        for req in self.running:
            req.is_planned = False
        self.in_flight.append(step)

    def apply(self) -> list[Running]:
        step = self.in_flight.pop(0)
        self.cache.end_step(step.number)
        for req, *_ in step.rows:
            req.in_flight -= 1
        self.after_verb()
        return [req for req, *_ in step.rows]

    @precondition(lambda self: not all(req.is_planned for req in self.running))
    @rule(pick=picks)
    def publish_computed(self, pick) -> None:
        # A row already planned has its page table written, which a commit may change.
        self.commit_computed(self.pick(pick, [req for req in self.running if not req.is_planned]))

    def commit_computed(self, req: Running) -> None:
        n = req.launched
        self.cache.commit(req.lease, ids(*req.tokens), n, n)
        self.publish(req, n, n)
        if n % self.page_size and n // self.page_size == req.published:
            self.published.tail(req.namespace, req.tokens[:n])
        self.after_verb()

    @precondition(lambda self: any(self.may_end(req) for req in self.running))
    @rule(pick=picks, keep=st.booleans())
    def finish(self, pick, keep) -> None:
        req = self.pick(pick, [req for req in self.running if self.may_end(req)])
        if keep:
            self.commit_computed(req)
        self.release(req)
        self.history.append(req.tokens)

    def release(self, req: Running) -> None:
        self.cache.release(req.lease)
        self.running.remove(req)
        with pytest.raises(RuntimeError, match="released"):
            self.cache.release(req.lease)
        self.after_verb()

    @rule(kind=rarely)
    def disturb(self, kind) -> None:
        if kind == "flush":
            self.flush()
        elif kind == "fail":
            self.fail()

    def flush(self) -> None:
        evictable, free = self.cache.evictable_pages, self.cache.free_pages
        assert 0 <= self.cache.flush() <= evictable * self.page_size
        assert self.cache.evictable_pages == 0
        assert self.cache.free_pages == free + evictable
        self.after_verb()
        self.forget_dropped()

    def fail(self) -> None:
        """The oldest step fails, with the next in flight and another perhaps half planned."""
        failed = self.in_flight[0] if self.in_flight else self.plan
        assert failed is not None
        for step in self.in_flight:
            for page, slot in step.written:
                self.memory[page][slot] = "garbage"
        self.in_flight, self.plan = [], None
        for req in list(self.running):
            self.release(req)
        self.cache.drop_since(failed.number)
        self.after_verb()
        self.forget_dropped()
        assert self.cache.locked_pages == 0
        self.memory_is_right()
        self.begin_step()

    # Checks

    def memory_is_right(self) -> None:
        """Everything published or computed is where the cache says, once the plan has run."""
        for namespace, tokens, pages in self.paths():
            self.check_pages(namespace, tokens, pages)
        for req in self.running:
            by_reference = req.published * self.page_size
            self.check_table(req, req.lease.pages.tolist(), max(req.launched, by_reference))

    def check_table(self, req: Running, table: list[int], n: int) -> None:
        self.check_pages(req.namespace, req.tokens[:n], table)

    def check_pages(self, namespace: str, tokens: Tokens, pages: list[int]) -> None:
        for t in range(len(tokens)):
            value = self.memory[pages[t // self.page_size]][t % self.page_size]
            assert value == (namespace, tokens[: t + 1]), f"token {t} of {tokens} in {pages}"

    def teardown(self) -> None:
        if self.plan is not None:
            self.launch()
        self.memory_is_right()
        while self.in_flight:
            self.apply()
        for req in list(self.running):
            self.release(req)
        assert self.cache.locked_pages == self.cache.leased_pages == 0
        assert self.cache.available_pages == PAGES
        self.flush()
        assert self.cache.free_pages == PAGES

    def counts(self) -> tuple[int, ...]:
        cache = self.cache
        return cache.free_pages, cache.evictable_pages, cache.locked_pages, cache.leased_pages

    def plannable(self, *, in_prompt: bool) -> list[Running]:
        return [
            r for r in self.running if not r.is_planned and (r.computed < r.prompt) == in_prompt
        ]

    def can_plan(self, *, in_prompt: bool) -> bool:
        return bool(self.plannable(in_prompt=in_prompt))

    def may_end(self, req: Running) -> bool:
        return not req.is_planned and not req.in_flight

    def pick(self, pick: int, among: list[Running]) -> Running:
        return among[pick % len(among)]


class WorldOfSlots(World):
    page_size = 1


class WorldOfPairs(World):
    page_size = 2


_SETTINGS = settings(
    max_examples=3 * settings.default.max_examples,
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestPageSize4 = World.TestCase
TestPageSize4.settings = _SETTINGS
TestPageSize2 = WorldOfPairs.TestCase
TestPageSize2.settings = _SETTINGS
TestPageSize1 = WorldOfSlots.TestCase
TestPageSize1.settings = _SETTINGS
