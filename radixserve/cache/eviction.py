"""Which leaf goes first.

Owns: the order of unlocked nodes by last use, the warm ones behind all others. Must not know: what
eviction frees, or for whom.
"""

from __future__ import annotations

from radixserve.cache.node import Node


class UseOrder:
    """Unlocked nodes, least recently used first, warm ones last; each behind all below it.

    A node is added when its last lock goes, which is its last use and never before the last lock of
    a child goes. So nothing is ever sorted, and the first node is always a leaf. The nodes
    themselves are the links of two rings, each closed by a node of its own: a change touches two
    neighbours, where a table would be somewhere else in memory for each node.
    """

    __slots__ = ("_cold", "_warm")

    def __init__(self) -> None:
        self._cold = _ring()
        self._warm = _ring()

    def add(self, node: Node) -> None:
        """The node's last lock has gone."""
        end = self._warm if node.is_warm else self._cold
        last = end.older
        assert last is not None
        node.older, node.newer = last, end
        last.newer = end.older = node

    def discard(self, node: Node) -> None:
        """The node is about to be locked or dropped; an upper part that was just cut off is not
        listed yet."""
        older, newer = node.older, node.newer
        if older is not None and newer is not None:
            older.newer, newer.older = newer, older
            node.older = node.newer = None

    def restore(self, node: Node) -> None:
        """Put back a node, now without children, that was discarded when it was the oldest."""
        end = self._warm if node.is_warm else self._cold
        newer = end.newer
        while newer is not None and newer is not end and newer.time < node.time:
            newer = newer.newer
        assert newer is not None
        older = newer.older
        assert older is not None
        node.older, node.newer = older, newer
        older.newer = newer.older = node

    def oldest(self) -> Node | None:
        """The unlocked leaf to drop next."""
        for end in (self._cold, self._warm):
            if end.newer is not end:
                return end.newer
        return None

    def nodes(self) -> list[Node]:
        """All of them, in their order."""
        return [*_listed(self._cold), *_listed(self._warm)]


def _ring() -> Node:
    end = Node("", b"", b"", None)
    end.older = end.newer = end
    return end


def _listed(end: Node) -> list[Node]:
    nodes = []
    node = end.newer
    while node is not None and node is not end:
        nodes.append(node)
        node = node.newer
    return nodes
