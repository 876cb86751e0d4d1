"""One edge of the radix tree and what hangs from it.

Owns: the fields of a node, and how a child is found. Must not know: who walks, locks or evicts.

Of two children only those that begin with the same id have anything in common, so a node files them
by that: mostly one for an id, or a few, which are the links of a chain: to drop one touches its
neighbours alone, where a list would be somewhere else in memory for each id.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import Final

from radixserve.cache.ordered import OrderedKeys

FEW = 8  # siblings up to which reading through them is cheaper than a table


class Node:
    """A run of pages below its parent; starts on a page border.

    key: bytes of the int32 ids on this edge: whole pages, or less than one page in a partial leaf.
    pages: bytes of the int32 ids of its pages. A root has no parent, an empty key and no pages.
    children: by the bytes of their first id, of a few the smallest; read it, but change it by the
    verbs below. `partials` counts the partial leaves among them.
    before, after: its neighbours among a few with the same first id, ascending.
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
        "after",
        "before",
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
        self.before: Node | None = None
        self.after: Node | None = None
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
        return None if here is None else here.find(page, stride)

    def alike(self, probe: bytes, reach: int) -> tuple[list[Node], int]:
        """The children with the probe's first id, ascending, and where the probe would stand among
        them; of many only those at most `reach` away from there."""
        here = self.children.get(probe[:4])
        if here is None:
            return [], 0
        if isinstance(here, Siblings):
            return here.around(probe, reach)
        if here.after is None:
            return [here], int(here.key < probe)
        few = here.nodes()
        return few, bisect_left(few, probe, key=_key_of)

    def all_children(self) -> list[Node]:
        """Those with one first id together."""
        found: list[Node] = []
        for here in self.children.values():
            found += here.nodes()
        return found

    def find(self, page: bytes, stride: int) -> Node | None:
        """The one that begins with `page`, of this and those after it."""
        step: Node | None = self
        while step is not None and step.key[:stride] != page:
            step = step.after
        return step

    def nodes(self) -> list[Node]:
        """This and those after it."""
        found = []
        step: Node | None = self
        while step is not None:
            found.append(step)
            step = step.after
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
            self._add_beside(here, child, stride)

    def _add_beside(self, head: Node, child: Node, stride: int) -> None:
        first = child.key[:4]
        step: Node | None = head
        before, count = None, 0
        while step is not None:
            count += 1
            if step.key < child.key:
                before = step
            step = step.after
        if count >= FEW:
            self.children[first] = many = Siblings()
            for node in [*head.nodes(), child]:
                node.before = node.after = None
                many.add(node, stride)
            return
        child.before = before
        child.after = head if before is None else before.after
        if before is None:
            self.children[first] = child
        else:
            before.after = child
        if child.after is not None:
            child.after.before = child

    def drop(self, child: Node, stride: int) -> None:
        self.partials -= len(child.key) < stride
        before, after = child.before, child.after
        if before is not None:
            before.after = after
        else:
            self._drop_first(child, stride)
        if after is not None:
            after.before = before
        child.before = child.after = None

    def _drop_first(self, child: Node, stride: int) -> None:
        first = child.key[:4]
        here = self.children[first]
        if isinstance(here, Siblings):
            if (left := here.drop(child, stride)) is not None:
                self.children[first] = left
        elif child.after is not None:
            self.children[first] = child.after
        else:
            del self.children[first]

    def swap(self, child: Node, other: Node, stride: int) -> None:
        """Put a node with the same first page in a child's place."""
        before, after = child.before, child.after
        if before is not None:
            before.after = other
        else:
            first = child.key[:4]
            here = self.children[first]
            if isinstance(here, Siblings):
                here.swap(child, other, stride)
            else:
                self.children[first] = other
        if after is not None:
            after.before = other
        other.before, other.after = before, after
        child.before = child.after = None


class Pin:
    """Copies from the first page of `node`, `count` of them, that are still to run.

    Where a node is cut its upper part is another, which has the pin from then on.
    """

    __slots__ = ("count", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.count = 0


class Siblings:
    """Many children of one node that begin with the same id, until one is left.

    They are found by their first page, the pages in order.
    """

    __slots__ = ("_by_page", "_order")

    def __init__(self) -> None:
        self._by_page: dict[bytes, Node] = {}
        self._order = OrderedKeys()

    def find(self, page: bytes, stride: int) -> Node | None:
        del stride
        return self._by_page.get(page)

    def around(self, probe: bytes, reach: int) -> tuple[list[Node], int]:
        """See Node.alike."""
        near, at = self._order.around(probe, reach)
        return [self._by_page[page] for page in near], at

    def nodes(self) -> list[Node]:
        """All of them, ascending."""
        return [self._by_page[page] for page in self._order.all()]

    def add(self, node: Node, stride: int) -> None:
        page = node.key[:stride]
        self._by_page[page] = node
        self._order.add(page)

    def drop(self, node: Node, stride: int) -> Node | None:
        """Returns the one that is left when it is the only one."""
        page = node.key[:stride]
        del self._by_page[page]
        self._order.remove(page)
        return next(iter(self._by_page.values())) if len(self._by_page) == 1 else None

    def swap(self, node: Node, other: Node, stride: int) -> None:
        self._by_page[node.key[:stride]] = other


_key_of = attrgetter("key")

NO_CHILDREN: Final[dict[bytes, Node | Siblings]] = {}
"""What leaves have, so that none needs one of its own; nobody writes to it."""
