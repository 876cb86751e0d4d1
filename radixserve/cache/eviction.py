"""Which leaf goes first.

Owns: the order of unlocked nodes by last use, the warm ones behind all others. Must not know: what
eviction frees, or for whom.
"""

from __future__ import annotations

from collections import OrderedDict

from radixserve.cache.node import Node


class UseOrder:
    """Unlocked nodes, least recently used first, warm ones last; each behind all below it.

    A node is added when its last lock goes, which is its last use and never before the last lock of
    a child goes. So nothing is ever sorted, and the first node is always a leaf.
    """

    __slots__ = ("_cold", "_warm")

    def __init__(self) -> None:
        self._cold: OrderedDict[Node, None] = OrderedDict()
        self._warm: OrderedDict[Node, None] = OrderedDict()

    def add(self, node: Node) -> None:
        """The node's last lock has gone."""
        if node.is_warm:
            self._warm[node] = None
        else:
            self._cold[node] = None

    def discard(self, node: Node) -> None:
        """The node is about to be locked or dropped; an upper part that was just cut off is not
        listed yet."""
        if node.is_warm:
            self._warm.pop(node, None)
        else:
            self._cold.pop(node, None)

    def oldest(self) -> Node | None:
        """The unlocked leaf to drop next."""
        for node in self._cold:
            return node
        for node in self._warm:
            return node
        return None

    def nodes(self) -> list[Node]:
        """All of them, in their order."""
        return [*self._cold, *self._warm]
