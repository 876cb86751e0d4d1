"""Where the match of a prompt that waits ended when it was last looked at.

Owns: the prompt, and whether that place still stands. Must not know: who waits, locks.

A node that is in the tree stays on the prefix it was found on: what is cut off a node goes to a new
one above it. Only its own end moves, and then it gets other bytes of pages.
"""

from __future__ import annotations

from radixserve.cache.match import match
from radixserve.cache.node import Node
from radixserve.cache.tree import RadixTree


class Bookmark:
    """For one prompt, of which each later look begins where the last one ended.

    namespace, key, limit: as for PrefixCache.acquire. cap: bytes of the key that may match.
    """

    __slots__ = ("_depth", "_node", "_pages", "cap", "key", "namespace")

    def __init__(self, namespace: str, key: bytes, limit: int | None = None) -> None:
        self.namespace = namespace
        self.key = key
        self.cap = len(key) - 4 if limit is None else min(len(key) - 4, 4 * limit)
        self._node: Node | None = None
        self._pages = b""
        self._depth = 0

    def look(self, tree: RadixTree) -> int:
        """How many tokens acquire would find now. Changes nothing in the tree."""
        node, depth = self._node, self._depth
        if node is None or node.parent is None or node.pages is not self._pages:
            root = tree.roots.get(self.namespace)
            if root is None:
                return 0
            node, depth = root, 0
        stride = tree.stride
        found = match(node, self.key, depth * stride, self.cap, stride, tree.stamps)
        node, inside, depth, _, extra = found
        tokens = depth * stride // 4 + extra
        if 4 * inside < len(node.pages) and node.parent is not None:
            node, depth = node.parent, depth - inside
        self._node, self._pages, self._depth = node, node.pages, depth
        return tokens
