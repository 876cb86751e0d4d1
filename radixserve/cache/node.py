"""One edge of the radix tree and what hangs from it.

Owns: the fields of a node, and how a child is found. Must not know: who walks, locks or evicts.

Of two children only those that begin with the same id have anything in common, so a node files them
by that: mostly one for an id, which then is found, added and dropped by touching one entry.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter
from typing import Final

from radixserve.cache.ordered import OrderedKeys

FEW = 8  # siblings up to which reading through a list is cheaper than finding them


class Node:
    """A run of pages below its parent; starts on a page border.

    key: bytes of the int32 ids on this edge: whole pages, or less than one page in a partial leaf.
    pages: bytes of the int32 ids of its pages. A root has no parent, an empty key and no pages.
    children: by the bytes of their first id; read it, but change it by the verbs below. `partials`
    counts the partial leaves among them.
    lock: leases that need this node, and copies from below it; never less than any child's.
    pin: copies from its first page that are still to run.
    time: last use.
    is_warm: dropped only when nothing else is left; then all above it is warm too.
    mark: see lost.mark_of; None until somebody asks.
    older, newer: its neighbours in the order of eviction; None in one that is not listed there.

    Where a child's page is asked for, stride is the bytes of a whole one; a partial leaf is found
    by all it has.
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
        "pages",
        "parent",
        "partials",
        "pin",
        "time",
    )

    def __init__(self, namespace: str, key: bytes, pages: bytes, parent: Node | None) -> None:
        self.namespace = namespace
        self.key = key
        self.pages = pages
        self.parent = parent
        self.children: dict[bytes, Node | Siblings] = NO_CHILDREN
        self.partials = 0
        self.lock = 0
        self.pin: Pin | None = None
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

    def child(self, page: bytes, stride: int) -> Node | None:
        """The child that begins with `page`."""
        here = self.children.get(page[:4])
        if isinstance(here, Siblings):
            return here.find(page, stride)
        return here if here is not None and here.key[:stride] == page else None

    def alike(self, probe: bytes, reach: int) -> tuple[list[Node], int]:
        """The children with the probe's first id, ascending, and where the probe would stand among
        them; of many only those at most `reach` away from there."""
        here = self.children.get(probe[:4])
        if here is None:
            return [], 0
        if isinstance(here, Siblings):
            return here.around(probe, reach)
        return [here], int(here.key < probe)

    def all_children(self) -> list[Node]:
        """Those with one first id together."""
        found: list[Node] = []
        for here in self.children.values():
            found += here.nodes() if isinstance(here, Siblings) else [here]
        return found

    def add(self, child: Node, stride: int) -> None:
        """Of its first page there is none yet."""
        if self.children is NO_CHILDREN:
            self.children = {}
        self.partials += len(child.key) < stride
        first = child.key[:4]
        here = self.children.setdefault(first, child)
        if isinstance(here, Siblings):
            here.add(child, stride)
        elif here is not child:
            self.children[first] = siblings = Siblings()
            siblings.add(here, stride)
            siblings.add(child, stride)

    def drop(self, child: Node, stride: int) -> None:
        self.partials -= len(child.key) < stride
        first = child.key[:4]
        here = self.children[first]
        if not isinstance(here, Siblings):
            del self.children[first]
        elif (left := here.drop(child, stride)) is not None:
            self.children[first] = left

    def swap(self, child: Node, other: Node, stride: int) -> None:
        """Put a node with the same first page in a child's place."""
        first = child.key[:4]
        here = self.children[first]
        if isinstance(here, Siblings):
            here.swap(child, other, stride)
        else:
            self.children[first] = other


class Pin:
    """Copies from the first page of `node`, `count` of them, that are still to run.

    Where a node is cut its upper part is another, which has the pin from then on.
    """

    __slots__ = ("count", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.count = 0


class Siblings:
    """Children of one node that begin with the same id: two or more, until one is left.

    Up to FEW they are a list, ascending. More are found by their first page, the pages in order.
    """

    __slots__ = ("_by_page", "_few", "_order")

    def __init__(self) -> None:
        self._few: list[Node] = []
        self._by_page: dict[bytes, Node] = NO_PAGES
        self._order: OrderedKeys | None = None

    def find(self, page: bytes, stride: int) -> Node | None:
        if self._order is not None:
            return self._by_page.get(page)
        for node in self._few:
            if node.key[:stride] == page:
                return node
        return None

    def around(self, probe: bytes, reach: int) -> tuple[list[Node], int]:
        """See Node.alike."""
        if self._order is None:
            return self._few, bisect_left(self._few, probe, key=_key_of)
        near, at = self._order.around(probe, reach)
        return [self._by_page[page] for page in near], at

    def nodes(self) -> list[Node]:
        """All of them, ascending."""
        if self._order is None:
            return self._few.copy()
        return [self._by_page[page] for page in self._order.all()]

    def add(self, node: Node, stride: int) -> None:
        if self._order is not None:
            page = node.key[:stride]
            self._by_page[page] = node
            self._order.add(page)
            return
        insort(self._few, node, key=_key_of)
        if len(self._few) > FEW:
            self._order, self._by_page = OrderedKeys(), {}
            self._few, few = [], self._few
            for one in few:
                self.add(one, stride)

    def drop(self, node: Node, stride: int) -> Node | None:
        """Returns the one that is left when it is the only one."""
        if self._order is None:
            self._few.remove(node)
            return self._few[0] if len(self._few) == 1 else None
        page = node.key[:stride]
        del self._by_page[page]
        self._order.remove(page)
        return next(iter(self._by_page.values())) if len(self._by_page) == 1 else None

    def swap(self, node: Node, other: Node, stride: int) -> None:
        if self._order is None:
            self._few[self._few.index(node)] = other
        else:
            self._by_page[node.key[:stride]] = other


_key_of = attrgetter("key")

NO_CHILDREN: Final[dict[bytes, Node | Siblings]] = {}
NO_PAGES: Final[dict[bytes, Node]] = {}
"""What leaves and few siblings have, so that none needs one of its own; nobody writes to them."""
