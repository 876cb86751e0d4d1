"""What a lease and the tree give each other after it was acquired.

Owns: publishing a lease's pages, moving it onto pages that the tree has already, its pending copy.
Must not know: other leases, what is free.

A lease is moved first and its own pages are freed after that, so that no page table names a page
that is somebody else's.
"""

from __future__ import annotations

from radixserve.cache.lease import Lease
from radixserve.cache.node import Node, Pin
from radixserve.cache.tree import RadixTree
from radixserve.plan import CopyOrder, PageId


def publish(tree: RadixTree, lease: Lease, key: bytes, end: int, written: int) -> None:
    """Publish whole pages [0, end), of which [0, written) are written."""
    if lease.depth < min(end, written):
        found = tree.walk(lease.node, key, lease.depth, min(end, written))
        node = tree.claim(found)
        _adopt(tree, lease, node, found[2])
    stride, start = tree.stride, lease.depth * tree.stride
    if lease.depth >= end or lease.node.child(key[start : start + stride], stride) is not None:
        return
    edge = key[start : end * stride]
    node, pages = lease.node, lease.table[4 * lease.depth : 4 * end]
    if lease.tail is not None:
        tree.rekey(lease.tail, edge[:stride])
        node, lease.tail = lease.tail, None
        edge, pages = edge[stride:], pages[4:]
    lease.node = tree.append(node, edge, pages) if edge else node
    lease.depth = end


def publish_tail(tree: RadixTree, lease: Lease, part: bytes) -> None:
    """Publish the filled part of the page behind those in the tree, if nobody has it there."""
    if not part or tree.is_covered(lease.node, part):
        return
    if lease.tail is not None:
        tree.rekey(lease.tail, part)
    else:
        page = lease.table[4 * lease.depth : 4 * lease.depth + 4]
        lease.tail = tree.add_child(lease.node, part, page)


def match_again(tree: RadixTree, lease: Lease, computed: int) -> int:
    """Move the lease onto what the tree has by now. Returns how many tokens it has, computed ones
    or matched ones."""
    found = tree.match(lease.node, lease.key, lease.depth, lease.cap)
    _, _, depth, source, extra = found
    reached = depth * tree.stride // 4 + extra
    if reached <= computed:
        return computed
    node = tree.claim(found)
    pin = None if source is None else tree.pin(source)
    drop_copy(tree, lease)
    _adopt(tree, lease, node, depth)
    if pin is not None:
        order_copy(lease, pin, extra)
    return reached


def order_copy(lease: Lease, source: Pin, n: int) -> None:
    """Let the next plan bring n tokens from the pinned page to the lease's first own."""
    page = int.from_bytes(lease.table[4 * lease.depth : 4 * lease.depth + 4], "little")
    pinned = int.from_bytes(source.node.pages[:4], "little")
    order = CopyOrder(PageId(pinned), PageId(page), n)
    lease.copy = order, source


def drop_copy(tree: RadixTree, lease: Lease) -> None:
    """Take back a copy that no plan has."""
    if lease.copy is not None:
        _, source = lease.copy
        lease.copy = None
        tree.unpin(source)


def _adopt(tree: RadixTree, lease: Lease, node: Node, depth: int) -> None:
    """Move the lease onto the tree's pages down to `node`, and only then free its own."""
    start = lease.depth
    if depth == start:
        return
    shared = tree.lock(node, above=lease.node)
    own = lease.table[4 * (start + (lease.tail is not None)) : 4 * depth]
    lease.table = lease.table[: 4 * start] + shared + lease.table[4 * depth :]
    above, lease.node, lease.depth = lease.node, node, depth
    if lease.tail is not None:
        tail, lease.tail = lease.tail, None
        tree.unlock(tail, above=above)
    tree.allocator.give(own)
