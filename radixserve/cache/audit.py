"""Checks of the cache's invariants.

Owns: what must hold after every call, each check with its own words. Changes nothing. Must not
know: why a state came about.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from radixserve.cache.allocator import INT32
from radixserve.cache.lease import CopySources, Lease
from radixserve.cache.match import StepStamps
from radixserve.cache.node import FEW, Node, Siblings
from radixserve.cache.tree import RadixTree


def audit(tree: RadixTree, leases: Iterable[Lease], sources: CopySources) -> None:
    """Raises AssertionError naming the broken invariant."""
    leases = list(leases)
    nodes = list(_nodes(tree))
    _audit_pages(tree, nodes, leases)
    _audit_locks(tree, nodes, leases, sources)
    for node in nodes:
        _audit_shape(node, tree.stride)
        _audit_stamps(node, tree.stamps)
    for root in tree.roots.values():
        _audit_marks(root, zlib.crc32(root.namespace.encode()))
    _audit_unused(tree, nodes)
    for lease in leases:
        _audit_lease(lease)


def _nodes(tree: RadixTree) -> Iterator[Node]:
    for namespace, root in tree.roots.items():
        assert root.namespace == namespace, f"root of {root.namespace!r} filed under {namespace!r}"
        assert root.children or root.lock, f"empty root of namespace {namespace!r} was kept"
    pending = list(tree.roots.values())
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.all_children())


def _audit_pages(tree: RadixTree, nodes: list[Node], leases: list[Lease]) -> None:
    """free + tree + leased only = total, and no page in two of them."""
    total = tree.allocator.total
    owners = [tree.allocator.free_pages()]
    owners += [np.frombuffer(node.pages, INT32) for node in nodes]
    owners += [lease.own_pages for lease in leases]
    count = np.bincount(np.concatenate(owners), minlength=total)
    assert len(count) == total, f"a page id lies outside the pool of {total}"
    assert (count <= 1).all(), f"pages with two owners: {np.flatnonzero(count > 1).tolist()}"
    assert (count >= 1).all(), f"pages that nobody has: {np.flatnonzero(count == 0).tolist()}"
    pages = sum(_pages(node) for node in nodes)
    assert tree.pages == pages, f"the tree counts {tree.pages} pages and has {pages}"
    locked = sum(_pages(node) if node.lock else node.pin is not None for node in nodes)
    assert tree.locked == locked, f"the tree counts {tree.locked} locked pages and has {locked}"
    assert tree.nodes == len(nodes) - len(tree.roots), f"the tree counts {tree.nodes} nodes"
    warm = sum(_pages(node) for node in nodes if node.is_warm)
    assert tree.warm == warm, f"the tree counts {tree.warm} warm pages and has {warm}"


def _audit_locks(
    tree: RadixTree, nodes: list[Node], leases: list[Lease], sources: CopySources
) -> None:
    """Every lock is accounted for by a lease at or below the node, or a copy from below it."""
    pins = sources.pins() + [lease.copy[1] for lease in leases if lease.copy is not None]
    copies = Counter(pins)
    for node in nodes:
        count = 0 if node.pin is None else copies.pop(node.pin, 0)
        assert node.pin is None or node.pin.node is node, f"{node}: another node's pin"
        assert node.pin is None or node.pin.count == count > 0, f"{node}: pinned, {count} copies"
    assert not copies, f"pinned pages have left the tree: {[pin.node for pin in copies]}"
    holders: list[Node | None] = [lease.deepest for lease in leases]
    holders += [pin.node.parent for pin in pins]
    expected: Counter[Node] = Counter()
    for step in holders:
        while step is not None:
            expected[step] += 1
            if step.parent is None:
                assert tree.roots.get(step.namespace) is step, "a locked path has left the tree"
            step = step.parent
    for node in nodes:
        wanted = expected[node]
        assert node.lock == wanted, f"{node}: lock {node.lock}, {wanted} holders"
        below = max((child.lock for child in node.all_children()), default=0)
        assert node.lock >= below, f"{node}: lock {node.lock} under a child's {below}"


def _audit_shape(node: Node, stride: int) -> None:
    name = str(node)
    if node.parent is None:
        assert len(node.key) == len(node.pages) == 0, f"{name}: a root has pages"
    elif len(node.key) < stride:
        assert node.key, f"{name}: a leaf without tokens"
        assert _pages(node) == 1, f"{name}: a partial leaf has one page"
        assert not node.children, f"{name}: a partial leaf has children"
    else:
        assert len(node.key) == _pages(node) * stride, f"{name}: ends off a page border"
    _audit_children(node, stride)
    is_under_warm = node.parent is None or node.parent.parent is None or node.parent.is_warm
    assert is_under_warm or not node.is_warm, f"{name}: warm below a node that is not"


def _audit_children(node: Node, stride: int) -> None:
    name = str(node)
    for first, here in node.children.items():
        assert len(first) == 4, f"{name}: children under {first!r}"
        alike = here.nodes()
        if isinstance(here, Siblings):
            assert len(alike) > 1, f"{name}: siblings without another"
            assert not any(c.before or c.after for c in alike), f"{name}: many in a chain"
        else:
            assert len(alike) <= FEW, f"{name}: a chain of {len(alike)}"
            before = [None, *alike[:-1]]
            assert [child.before for child in alike] == before, f"{name}: a chain is broken"
        pages = [child.key[:stride] for child in alike]
        assert pages == sorted(set(pages)), f"{name}: its children are out of order, or equal"
        for child in alike:
            assert child.parent is node, f"{name}: a child has another parent"
            assert child.namespace == node.namespace, f"{name}: a child of another namespace"
            assert child.key[:4] == first, f"{name}: a child is filed under another id"
            assert node.child(child.key[:stride], stride) is child, f"{name}: a child is not found"
    partials = sum(len(child.key) < stride for child in node.all_children())
    assert node.partials == partials, f"{name}: counts {node.partials} partial leaves of {partials}"


def _audit_stamps(node: Node, stamps: StepStamps) -> None:
    steps = stamps.of(node)
    assert (steps <= stamps.step).all(), f"{node}: published in a step to come"
    above = node.parent
    if above is not None and above.pages:
        steps = np.concatenate((stamps.of(above)[-1:], steps))
    assert (np.diff(steps) >= 0).all(), f"{node}: published before what it follows"


def _audit_marks(top: Node, mark: int) -> None:
    """A mark that a node has kept is that of the prefix it stands for."""
    pending = [(top, mark)]
    while pending:
        node, mark = pending.pop()
        mark = zlib.crc32(node.key, mark)
        assert node.mark in (None, mark), f"{node}: the mark of another prefix"
        pending += [(child, mark) for child in node.all_children()]


def _audit_unused(tree: RadixTree, nodes: list[Node]) -> None:
    listed = tree.unused.nodes()
    unlocked = [node for node in nodes if node.parent is not None and not node.lock]
    aside = {node for node in unlocked if node.older is None}
    assert set(listed) | aside == set(unlocked), "the order of eviction has other nodes"
    for node in aside:
        is_pinned = node.pin is not None and _pages(node) == 1 and not node.children
        assert is_pinned, f"{node}: would never be evicted"
    place = {node: i for i, node in enumerate(listed)}
    uses = [(node.is_warm, node.time) for node in listed]
    assert uses == sorted(uses), "the order of eviction is not that of the last uses"
    for leaf in unlocked:
        assert leaf.parent is not None
        assert leaf in aside or place[leaf] < place.get(leaf.parent, len(place)), (
            "a parent would go before a child"
        )
        if len(leaf.key) < tree.stride and leaf.pin is None:
            beside = [child.key for child in leaf.parent.all_children()]
            longer = [key for key in beside if key.startswith(leaf.key) and key != leaf.key]
            assert not longer, f"{leaf}: an unlocked partial leaf beside a longer page"


def _audit_lease(lease: Lease) -> None:
    path: list[int] = []
    node: Node | None = lease.node
    while node is not None:
        path = np.frombuffer(node.pages, INT32).tolist() + path
        assert node.namespace == lease.namespace, "a lease of another namespace"
        node = node.parent
    assert lease.depth == len(path), f"a lease of depth {lease.depth} ends at {len(path)}"
    table = lease.pages[: lease.depth].tolist()
    assert table == path, f"a lease names pages {table}, its path has {path}"
    if lease.tail is not None:
        assert lease.tail.parent is lease.node, "a lease's tail hangs from another node"
        own = lease.table[4 * lease.depth : 4 * lease.depth + 4]
        assert lease.tail.pages == own, "a lease's tail is another's page"
    if lease.copy is not None:
        order, source = lease.copy
        assert order.destination in lease.pages, "a copy goes to a page not its own"
        assert order.source == np.frombuffer(source.node.pages, INT32)[0], (
            "a copy comes from a page that is not pinned"
        )


def _pages(node: Node) -> int:
    return len(node.pages) // 4
