"""What one request holds of the KV pool.

Owns: the page table of a request, and the copies that wait for the plan being made. Must not know:
the request, or when its steps run.
"""

from __future__ import annotations

import numpy as np

from radixserve.cache.allocator import INT32
from radixserve.cache.node import Node, Pin
from radixserve.cache.tree import RadixTree
from radixserve.plan import CopyOrder, Int32


class CopySources:
    """Pages that steps not yet applied copy from; they stay pinned until `release`."""

    __slots__ = ("_by_step", "_tree")

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._by_step: dict[int, list[Pin]] = {}

    def hold(self, source: Pin) -> None:
        """Keep a page pinned until the step now being planned has been applied."""
        self._by_step.setdefault(self._tree.stamps.step, []).append(source)

    def release(self, step: int) -> None:
        """The step has been applied: unpin what it copied from."""
        for source in self._by_step.pop(step, ()):
            self._tree.unpin(source)

    def release_all(self) -> None:
        for step in list(self._by_step):
            self.release(step)

    def pins(self) -> list[Pin]:
        return [pin for pins in self._by_step.values() for pin in pins]


class Lease:
    """Pages for one request. Made by PrefixCache.acquire, changed only by the cache's verbs.

    namespace, key: what was acquired; key is the bytes of the int32 ids.
    table: the page table, the only one there is, as the bytes of int32 ids; token t is in the page
    t // page_size.
    matched: leading tokens whose KV was in the cache at acquire (a pending copy included).

    The rest is the cache's: cap (most tokens that may match), node (the deepest node of whole pages
    that this lease locks), depth (pages down to there, which are the tree's), tail (the partial
    leaf in the tree that names this lease's own page `depth`), copy (an order and its pinned
    source, not yet handed to a plan).
    """

    __slots__ = (
        "_sources",
        "cap",
        "copy",
        "depth",
        "is_released",
        "key",
        "matched",
        "namespace",
        "node",
        "table",
        "tail",
    )

    def __init__(
        self,
        namespace: str,
        key: bytes,
        cap: int,
        node: Node,
        table: bytes,
        sources: CopySources,
        depth: int,
    ) -> None:
        self.namespace = namespace
        self.key = key
        self.cap = cap
        self.node = node
        self.table = table
        self.matched = 0
        self.depth = depth
        self.tail: Node | None = None
        self.copy: tuple[CopyOrder, Pin] | None = None
        self.is_released = False
        self._sources = sources

    @property
    def deepest(self) -> Node:
        """The node whose path this lease locks."""
        return self.node if self.tail is None else self.tail

    @property
    def pages(self) -> Int32:
        """The table as an array, [n] int32."""
        return np.frombuffer(self.table, INT32)

    @property
    def own_table(self) -> bytes:
        """The bytes of own_pages."""
        return self.table[4 * self.depth if self.tail is None else 4 * self.depth + 4 :]

    @property
    def own_pages(self) -> Int32:
        """The pages that only this lease has; none once it is released."""
        return np.frombuffer(self.own_table, INT32)

    def end(self) -> None:
        """Its pages have been given back."""
        self.is_released = True
        self.tail = None
        self.table = b""

    def take_copies(self) -> tuple[CopyOrder, ...]:
        """The copies that the plan now being made must carry; each is handed out once.

        From here on the step runs them: the lease must be neither released nor advanced before
        that plan is launched, for its page would be another's while the copy is still to come.
        """
        if self.copy is None:
            return ()
        order, source = self.copy
        self.copy = None
        self._sources.hold(source)
        return (order,)
