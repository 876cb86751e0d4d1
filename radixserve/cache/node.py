"""One edge of the radix tree and what it knows of itself.

Owns: the fields of a node. Must not know: how nodes are found, locked or evicted.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from radixserve.cache.ordered import ChildKeys
from radixserve.plan import Int32

NO_PAGES: Final[Int32] = np.empty(0, dtype=np.int32)


class Node:
    """A run of pages below its parent; starts on a page border.

    key: bytes of the int32 ids on this edge: whole pages, or less than one page in a partial leaf.
    pages: [n] int32. A root has no parent, an empty key and no pages.
    children: by the bytes of their first page (all they have, for a partial leaf); `order` holds
    the same keys by their beginning, `partials` counts the partial leaves among them.
    lock: leases and copies that need this node; never less than any child's.
    time: last use.
    is_warm: dropped only when nothing else is left; then all above it is warm too.
    mark: see lost.mark_of; None until somebody asks.
    older, newer: its neighbours in the order of eviction; None in one that is not listed there.
    """

    __slots__ = (
        "children",
        "is_warm",
        "key",
        "lock",
        "mark",
        "namespace",
        "newer",
        "older",
        "order",
        "pages",
        "parent",
        "partials",
        "time",
    )

    def __init__(self, namespace: str, key: bytes, pages: Int32, parent: Node | None) -> None:
        self.namespace = namespace
        self.key = key
        self.pages = pages
        self.parent = parent
        self.children: dict[bytes, Node] = NO_CHILDREN
        self.order: ChildKeys | None = None
        self.partials = 0
        self.lock = 0
        self.time = 0
        self.is_warm = False
        self.mark: int | None = None
        self.older: Node | None = None
        self.newer: Node | None = None

    def __repr__(self) -> str:
        return f"node of {self.tokens} tokens, {list(memoryview(self.key[:16]).cast('i'))} first"

    @property
    def tokens(self) -> int:
        return len(self.key) // 4


NO_CHILDREN: Final[dict[bytes, Node]] = {}
"""What every leaf has, so that none needs one of its own; nobody writes to it."""
