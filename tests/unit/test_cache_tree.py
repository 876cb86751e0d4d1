"""RadixTree on its own: shape, eviction order, drops."""

from __future__ import annotations

import random
from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.cache.allocator import PageAllocator
from radixserve.cache.eviction import UseOrder
from radixserve.cache.match import common_tokens
from radixserve.cache.node import FEW, Node, Siblings
from radixserve.cache.tree import RadixTree


def ids(*tokens: int) -> bytes:
    return np.array(tokens, dtype=np.int32).tobytes()


def put(tree: RadixTree, *tokens: int) -> Node:
    """Publish whole pages of which the tree has none; returns their node, unlocked."""
    root = tree.roots.setdefault("", Node("", b"", b"", None))
    tree.lock(root)
    node = tree.append(root, ids(*tokens), tree.allocator.take(len(tokens) * 4 // tree.stride))
    tree.unlock(node)
    return node


def keys(tree: RadixTree) -> list[bytes]:
    return [child.key for child in tree.roots[""].all_children()]


@pytest.mark.parametrize(("a", "b", "n"), [((), (1,), 0), ((1, 2), (1, 3), 1), ((1, 2), (1, 2), 2)])
def test_common_tokens(a: tuple[int, ...], b: tuple[int, ...], n: int) -> None:
    assert common_tokens(ids(*a), ids(*b)) == n


def test_common_tokens_ignores_bytes_within_a_token() -> None:
    assert common_tokens(ids(1, 0x01020304), ids(1, 0x7F020304)) == 1
    assert common_tokens(ids(-1, -2), ids(-1, -1)) == 1


def test_the_best_partial_match_is_found_among_thousands_of_children() -> None:
    rng = random.Random(1)
    tree = RadixTree(PageAllocator(4096), 4)
    pages = sorted({tuple(rng.randrange(12) for _ in range(4)) for _ in range(3000)})
    for page in rng.sample(pages, len(pages)):
        put(tree, *page)
    tree.stamps.step += 1
    for _ in range(300):
        probe = tuple(rng.randrange(12) for _ in range(5))
        best = max(common_tokens(ids(*page), ids(*probe)) for page in pages)
        _, _, depth, _, extra = tree.match(tree.roots[""], ids(*probe), 0, 5)
        assert depth * 4 + extra == best


def test_the_leaf_used_longest_ago_goes_first_and_only_as_much_as_needed() -> None:
    tree = RadixTree(PageAllocator(8), 2)
    old = put(tree, 1, 1, 1, 1, 1, 1)
    pages = old.pages + put(tree, 2, 2, 2, 2).pages
    tree.lock(old)
    tree.unlock(old)
    dropped = tree.evict(1)
    assert keys(tree) == [ids(1, 1, 1, 1, 1, 1), ids(2, 2)]
    dropped += tree.evict(3)
    assert keys(tree) == [ids(1, 1)]
    assert tree.evicted_tokens == 8
    assert (tree.allocator.free, tree.pages) == (3, 1)
    assert sorted(dropped + tree.roots[""].all_children()[0].pages) == sorted(pages)


def test_a_parent_that_becomes_a_leaf_is_evicted_by_its_own_last_use() -> None:
    tree = RadixTree(PageAllocator(8), 2)
    parent = put(tree, 1, 1)
    tree.lock(parent)
    child = tree.add_child(parent, ids(5, 5), tree.allocator.take(1))
    tree.unlock(child)
    put(tree, 2, 2)
    tree.lock(parent)  # a request that matched the parent alone
    tree.unlock(parent)
    tree.evict(1)
    assert not parent.children
    tree.evict(1)
    assert keys(tree) == [ids(1, 1)]
    tree.evict(1)
    assert tree.roots == {}


def test_a_locked_node_is_never_evicted() -> None:
    tree = RadixTree(PageAllocator(4), 2)
    kept = put(tree, 1, 1)
    put(tree, 2, 2)
    tree.lock(kept)
    tree.evict(1)
    assert keys(tree) == [ids(1, 1)]
    with pytest.raises(RuntimeError, match="no unlocked leaf"):
        tree.evict(1)


def test_a_grown_edge_stops_growing_at_its_bound() -> None:
    tree = RadixTree(PageAllocator(600), 1)
    root = tree.roots.setdefault("", Node("", b"", b"", None))
    tree.lock(root)
    node = tree.append(root, ids(0), tree.allocator.take(1))
    nodes = {node}
    for token in range(1, 600):
        node = tree.append(node, ids(token), tree.allocator.take(1))
        nodes.add(node)
    assert len(nodes) == 3
    tree.unlock(node)
    assert tree.match(root, ids(*range(700)), 0, 699)[2] == 600
    assert tree.flush() == 600


def test_pages_of_a_failed_step_go_and_earlier_ones_stay() -> None:
    tree = RadixTree(PageAllocator(8), 1)
    tree.stamps.step = 1
    node = put(tree, 1, 2, 3)
    tree.stamps.step = 2
    tree.lock(node)
    grown = tree.append(node, ids(4, 5), tree.allocator.take(2))
    assert grown is node
    with pytest.raises(RuntimeError, match="still locked"):
        tree.drop_since(2)
    tree.unlock(node)
    tree.drop_since(3)
    assert node.key == ids(1, 2, 3, 4, 5)
    tree.drop_since(2)
    assert node.key == ids(1, 2, 3)
    assert tree.allocator.free == 5
    tree.drop_since(1)
    assert tree.roots == {}
    assert tree.allocator.free == 8


def test_the_order_of_use_puts_the_warm_last() -> None:
    unused = UseOrder()
    nodes = [Node("", ids(i), b"", None) for i in range(4)]
    nodes[1].is_warm = True
    for node in (nodes[1], nodes[0], nodes[2], nodes[3]):
        unused.add(node)
    unused.discard(nodes[0])
    unused.add(nodes[0])
    unused.discard(nodes[3])
    unused.discard(nodes[3])
    assert unused.nodes() == [nodes[2], nodes[0], nodes[1]]
    for node in (nodes[2], nodes[0], nodes[1]):
        assert unused.oldest() is node
        unused.discard(node)
    assert unused.oldest() is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "drop", "swap"]),
            st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple),
        ),
        max_size=60,
    )
)
def test_children_are_found_like_those_in_a_table(changes) -> None:
    node, table = Node("", b"", b"", None), {}
    for change, tokens in changes:
        page = ids(*tokens)
        assert node.child(page, 12) is table.get(page)
        alike = sorted(key for key in table if key[:4] == page[:4])
        found, at = node.alike(page, 2 * FEW)
        assert [child.key[:12] for child in found] == alike
        assert at == bisect_left(alike, page)
        if change == "add" and page not in table:
            table[page] = Node("", page + page if len(tokens) == 3 else page, b"", node)
            node.add(table[page], 12)
        elif change != "add" and page in table:
            had = table.pop(page)
            if change == "drop":
                node.drop(had, 12)
            else:
                table[page] = Node("", page, b"", node)
                node.swap(had, table[page], 12)
        assert sorted(c.key[:12] for c in node.all_children()) == sorted(table)
        assert node.partials == sum(len(page) < 12 for page in table)
        for first, here in node.children.items():
            count = sum(key[:4] == first for key in table)
            assert count > 1 if isinstance(here, Siblings) else count <= FEW
