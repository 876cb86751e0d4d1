"""One edge of the radix tree and what it knows of itself.

Owns: the fields of a node. Must not know: how nodes are found, locked or evicted.
"""

from __future__ import annotations

import itertools

from radixserve.cache.ordered import ChildKeys
from radixserve.plan import Int32

_serials = itertools.count()


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
    """

    __slots__ = (
        "children",
        "is_warm",
        "key",
        "lock",
        "mark",
        "namespace",
        "order",
        "pages",
        "parent",
        "partials",
        "serial",
        "time",
    )

    def __init__(self, namespace: str, key: bytes, pages: Int32, parent: Node | None) -> None:
        self.namespace = namespace
        self.key = key
        self.pages = pages
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.order: ChildKeys | None = None
        self.partials = 0
        self.lock = 0
        self.time = 0
        self.is_warm = False
        self.mark: int | None = None
        self.serial = next(_serials)

    @property
    def tokens(self) -> int:
        return len(self.key) // 4
