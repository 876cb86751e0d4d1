"""Explanations against a brute-force list of everything that was in the tree, and warm prefixes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.cache import tree as tree_module
from radixserve.cache.prefix import PrefixCache
from tests.cache_driver import acquired, assert_no_leak, cache_of, ids, keep
from tests.cache_published import Tokens, common

prompts = st.lists(st.integers(0, 2), min_size=1, max_size=14).map(tuple)
actions = st.tuples(
    st.sampled_from(["keep", "keep", "keep", "flush", "warm"]), st.sampled_from(["", "b"]), prompts
)


def held(cache: PrefixCache) -> dict[tuple[str, Tokens], int]:
    """Every prefix in the tree that ends with a page or a partial leaf, and that page."""
    found = {}
    pending = [(root, ()) for root in cache._tree.roots.values()]
    while pending:
        node, before = pending.pop()
        tokens = before + tuple(np.frombuffer(node.key, np.int32).tolist())
        for i, page in enumerate(np.frombuffer(node.pages, np.int32).tolist()):
            end = min(len(tokens), len(before) + (i + 1) * cache.page_size)
            found[node.namespace, tokens[:end]] = page
        pending += [(child, tokens) for child in node.all_children()]
    return found


def is_held(namespace: str, tokens: Tokens, paths) -> bool:
    return any(space == namespace and t[: len(tokens)] == tokens for space, t in paths)


def use(cache: PrefixCache, namespace: str, tokens: Tokens, *, warm: bool = False) -> bool:
    """A request computes all these tokens and ends."""
    lease = cache.acquire(namespace, ids(*tokens))
    assert lease is not None
    lease.take_copies()
    cache.end_step(cache.begin_step() - 1)
    cache.commit(lease, ids(*tokens), len(tokens), len(tokens))
    kept = warm and cache.keep_warm(lease)
    cache.release(lease)
    cache.begin_step()
    return kept


@given(page_size=st.sampled_from([1, 2, 4]), history=st.lists(actions, max_size=12), asked=prompts)
def test_explanations_agree_with_a_list(page_size, history, asked) -> None:
    cache = PrefixCache(14, page_size, audit=True)
    cache.begin_step()
    lost: dict[tuple[str, Tokens], str] = {}
    for action, namespace, tokens in history:
        before, evicted = held(cache), cache.evicted_tokens
        if action == "flush":
            cache.flush()
        else:
            use(cache, namespace, tokens, warm=action == "warm")
        # A part of a page may also go because a longer page replaces it: that is no loss.
        now = held(cache).keys()
        gone = {(space, t) for space, t in before if not is_held(space, t, now)}
        if action == "flush" or cache.evicted_tokens > evicted:
            lost |= dict.fromkeys(gone, "flushed" if action == "flush" else "evicted")
    for namespace in ("", "b"):
        check(cache, held(cache), lost, namespace, asked)


def check(cache, there, lost, namespace, asked) -> None:
    report = cache.explain(namespace, ids(*asked))
    cap = len(asked) - 1
    mine = [tokens for space, tokens in there if space == namespace]
    assert report.matched == cache.peek(namespace, ids(*asked))
    assert report.matched == max((common(t, asked[:cap]) for t in mine), default=0)
    if report.matched == cap:
        assert (report.reason, report.lost, report.other) == ("whole", 0, None)
        return
    here = asked[: report.matched]
    others = {t[len(here)] for t in mine if t[: len(here)] == here and len(t) > len(here)}
    assert asked[report.matched] not in others
    assert (report.other in others) if others else (report.other is None)
    had = {
        tokens: cause
        for (space, tokens), cause in lost.items()
        if space == namespace and report.matched < len(tokens) and tokens == asked[: len(tokens)]
    }
    longest = max(had, key=len, default=None)
    if longest is None:
        assert (report.reason, report.lost) == ("never", 0)
    else:
        assert report.matched + report.lost == min(len(longest), cap)
        assert report.reason == had[longest]


def test_the_first_differing_token_and_what_was_evicted() -> None:
    cache = cache_of(4, 4)
    keep(cache, 1, 2, 3, 4, 5, 6, 7, 8)
    report = cache.explain("", ids(1, 2, 3, 9, 9))
    assert (report.matched, report.reason, report.other) == (3, "never", 4)
    report = cache.explain("elsewhere", ids(1, 2, 3, 9, 9))
    assert (report.matched, report.reason, report.other) == (0, "never", None)
    keep(cache, *[9] * 16)
    report = cache.explain("", ids(1, 2, 3, 4, 5, 6, 7, 8, 1))
    assert (report.matched, report.reason, report.lost) == (0, "evicted", 8)
    assert report.other == 9
    cache.flush()
    report = cache.explain("", ids(*[9] * 14))
    assert (report.reason, report.lost, report.other) == ("flushed", 12, None)
    assert cache.explain("", ids(9)).reason == "whole"
    assert cache.explain("", ids(9, 9, 9), limit=0).reason == "limit"
    assert cache_of(4, 4, enabled=False).explain("", ids(9, 9)).reason == "off"


def test_what_a_step_computes_now_is_pending() -> None:
    cache = cache_of(8, 4)
    lease = acquired(cache, 1, 2, 3, 4, 5)
    cache.commit(lease, ids(1, 2, 3, 4, 5), 4, 0)
    report = cache.explain("", ids(1, 2, 3, 9))
    assert (report.matched, report.reason) == (0, "pending")
    cache.begin_step()
    assert cache.explain("", ids(1, 2, 3, 9, 9)).matched == 3
    cache.release(lease)


def test_an_edge_that_was_cut_and_grows_again_is_remembered_as_it_is() -> None:
    cache = cache_of(6, 2)
    keep(cache, 1, 2, 3, 4, 5, 6, 7, 8)
    keep(cache, *range(10, 18))  # cuts the first edge
    lease = acquired(cache, 1, 2, 3, 4, 9)
    assert lease.matched == 4
    cache.commit(lease, ids(1, 2, 3, 4, 9, 9, 9), 6, 4)  # which grows in its place
    cache.release(lease)
    keep(cache, *range(20, 32))
    assert cache.explain("", ids(1, 2, 3, 4, 9, 9, 1)).lost == 6
    assert cache.explain("", ids(1, 2, 3, 4, 5, 6, 7, 8, 1)).lost == 8
    assert cache.explain("", ids(1, 2, 3, 4, 9, 9, 7, 8, 1)).lost == 6


def test_the_memory_of_dropped_pages_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(tree_module, "REMEMBERED", 5)
    cache = cache_of(8, 2)
    keep(cache, *range(16))
    keep(cache, *range(100, 116))
    assert cache.stats().remembered == 5
    # What is dropped last is kept longest: the beginning, without which the rest is of no use.
    assert cache.explain("", ids(*range(16), 1)).lost == 10
    cache.flush()
    assert cache.stats().remembered == 5


@given(history=st.lists(st.tuples(st.booleans(), prompts), max_size=14))
def test_what_is_warm_goes_last_and_has_bounds(history) -> None:
    cache = PrefixCache(12, 2, audit=True, warm_share=0.5)
    cache.begin_step()
    for warm, tokens in history:
        cold = cache.evictable_pages - cache.stats().warm // 2
        free, kept = cache.free_pages, kept_warm(cache)
        use(cache, "", tokens, warm=warm)
        if not all(path in held(cache) for path in kept):
            # All that was cold could go first, but for what the request itself has locked.
            assert free + cold < -(-len(tokens) // 2) + 1
        assert cache.stats().warm <= cache.stats().warm_limit == 12
    assert_no_leak(cache)
    assert cache.stats().warm == 0


def kept_warm(cache: PrefixCache) -> set[tuple[str, Tokens]]:
    found = set()
    pending = [(root, ()) for root in cache._tree.roots.values()]
    while pending:
        node, before = pending.pop()
        tokens = before + tuple(np.frombuffer(node.key, np.int32).tolist())
        if node.is_warm:
            found.add((node.namespace, tokens))
        pending += [(child, tokens) for child in node.all_children()]
    return found


def test_a_warm_prefix_survives_what_would_evict_it() -> None:
    warm = tuple(range(8))
    for is_warm, survives in ((True, 8), (False, 0)):
        cache = cache_of(8, 2)
        cache._warm_limit = 4
        assert use(cache, "", warm, warm=is_warm) is is_warm
        for i in range(4):
            use(cache, "", tuple(range(100 * i + 100, 100 * i + 108)))
        assert cache.peek("", ids(*warm, 9)) == survives
        use(cache, "", tuple(range(1000, 1016)))  # needs every page there is
        assert cache.peek("", ids(*warm, 9)) == 0
        assert_no_leak(cache)


def test_what_grows_behind_a_warm_prefix_is_not_warm() -> None:
    cache = PrefixCache(16, 2, audit=True, warm_share=0.5)
    cache.begin_step()
    lease = cache.acquire("", ids(*range(8)))
    assert lease is not None
    cache.commit(lease, ids(*range(8)), 8, 0)
    assert cache.keep_warm(lease)
    assert cache.grow(lease, 14)
    cache.commit(lease, ids(*range(14)), 14, 8)
    assert cache.stats().warm == 8
    assert not cache.keep_warm(lease) or cache.stats().warm == 14
    cache.release(lease)
    with pytest.raises(RuntimeError, match="released"):
        cache.keep_warm(lease)


def test_more_than_the_share_is_refused() -> None:
    cache = PrefixCache(16, 2, audit=True, warm_share=0.25)
    cache.begin_step()
    assert use(cache, "", tuple(range(8)), warm=True)
    assert use(cache, "", tuple(range(8)), warm=True), "what is warm already costs nothing"
    assert not use(cache, "", (*range(8), 1, 1), warm=True)
    assert cache.stats().warm == 8


def test_the_listing_has_bounds_and_shows_the_latest_first() -> None:
    cache = cache_of(32, 2)
    keep(cache, 1, 2, 3, 4)
    keep(cache, 1, 2, 5, 6)
    keep(cache, 7, 8)
    use(cache, "other", (9, 9))
    rows = cache.listing("", 4, 100)
    assert rows[0].parent is None
    assert [(row.parent, row.ids) for row in rows] == [
        (None, []),
        (0, [7, 8]),
        (0, [1, 2]),
        (2, [5, 6]),
        (2, [3, 4]),
    ]
    assert [(row.tokens, row.left_out) for row in cache.listing("", 1, 2)] == [(0, 1), (2, 0)]
    assert [row.left_out for row in cache.listing("", 1, 100)] == [0, 0, 2]
    assert [row.namespace for row in cache.listing(None, 0, 100)] == ["other", ""]
    assert cache.listing("nobody", 4, 100) == []
    assert sum(row.parent is not None for row in cache.listing(None, 9, 100)) == cache.stats().nodes
    stats = cache.stats()
    assert stats.total == stats.free + stats.evictable + stats.locked + stats.leased
    assert stats.namespaces == 2
