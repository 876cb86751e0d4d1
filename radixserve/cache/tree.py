"""The radix tree: which page holds the KV of which prefix.

Owns: the nodes, their locks, the counts of pages in the tree, what eviction takes and what of that
is remembered. Must not know: leases; it gets and gives nodes, keys and pages.

Locks count paths: locking a node adds one to it and to each ancestor, so a node's lock is never
less than a child's, everything below an unlocked node is unlocked, and evictable pages are those of
unlocked nodes. A pin holds one page for a copy: the first of a node, and the path above that. What
is behind it in the node can go meanwhile, and the node is no more used than before.
"""

from __future__ import annotations

import numpy as np

from radixserve.cache.allocator import PageAllocator
from radixserve.cache.eviction import UseOrder
from radixserve.cache.lost import Cause, LostPages
from radixserve.cache.match import Match, StepStamps, match, walk
from radixserve.cache.node import Node, Pin

# A node grows in place up to this many pages, so that a long decode does not copy its whole edge
# for each page it fills.
LONGEST_GROWN = 256

REMEMBERED = 32_768  # dropped pages; 5 MB in edges of 4 pages, 12 MB in edges of one


class RadixTree:
    """One root per namespace. `stride` is the bytes of a page's ids.

    pages, locked, warm: how many pages the tree holds, how many of them are in locked nodes or
    pinned, and how many in warm nodes. nodes: how many there are, roots left out. evicted_tokens:
    tokens dropped to make room, ever. lost: the pages dropped last. unused: the unlocked nodes;
    without roots, and without pinned ones of which eviction has left no more than the pinned page.
    """

    __slots__ = (
        "_clock",
        "allocator",
        "evicted_tokens",
        "locked",
        "lost",
        "nodes",
        "pages",
        "roots",
        "stamps",
        "stride",
        "unused",
        "warm",
    )

    def __init__(self, allocator: PageAllocator, page_size: int) -> None:
        self.allocator = allocator
        self.stride = 4 * page_size
        self.stamps = StepStamps(allocator.total)
        self.unused = UseOrder()
        self.lost = LostPages(REMEMBERED, self.stride)
        self.roots: dict[str, Node] = {}
        self.nodes = 0
        self.pages = 0
        self.locked = 0
        self.warm = 0
        self.evicted_tokens = 0
        self._clock = 0

    @property
    def uses(self) -> int:
        """How often something was used, ever."""
        return self._clock

    def match(self, node: Node, key: bytes, depth: int, cap_tokens: int) -> Match:
        """The longest match of the key's first cap_tokens below `node`, which ends at page depth.

        Changes nothing.
        """
        return match(node, key, depth * self.stride, cap_tokens * 4, self.stride, self.stamps)

    def walk(self, node: Node, key: bytes, depth: int, cap_pages: int) -> Match:
        """Like match, whole pages only."""
        return walk(node, key, depth * self.stride, cap_pages * self.stride, self.stride)

    def unlocked_pages(self, found: Match) -> int:
        """How many evictable pages locking the matched whole pages would take away."""
        node, count, _, _, _ = found
        if node.lock:
            return 0
        count -= node.pin is not None
        step = node.parent
        while step is not None and not step.lock:
            count += len(step.pages) // 4 - (step.pin is not None)
            step = step.parent
        return count

    def claim(self, found: Match) -> Node:
        """Return the node that ends where the match ends; where there is none, cut one so.

        Locks nothing. The page to copy is the source's first from then on.
        """
        node, inside, _, _, _ = found
        return node if 4 * inside == len(node.pages) else self._split(node, inside)

    def lock(self, node: Node, above: Node | None = None) -> bytes:
        """Add a lock to the path from `node` up to, not including, `above`; returns its pages, from
        above down."""
        parts = []
        step: Node | None = node
        while step is not above:
            assert step is not None
            parts.append(step.pages)
            lock = step.lock
            step.lock = lock + 1
            if not lock:
                self.locked += len(step.pages) // 4 - (step.pin is not None)
                self.unused.discard(step)
            step = step.parent
        parts.reverse()
        return b"".join(parts)

    def unlock(self, node: Node, above: Node | None = None) -> None:
        """Take a lock from the path from `node` up to, not including, `above`; counts as a use."""
        self._clock = now = self._clock + 1
        step: Node | None = node
        while step is not above:
            assert step is not None
            step.time = now
            step.lock = lock = step.lock - 1
            up = step.parent
            if not lock and up is not None:
                self.locked -= len(step.pages) // 4 - (step.pin is not None)
                self.unused.add(step)
            step = up
        if not node.lock and not node.children:
            self._settle(node)

    def pin(self, node: Node) -> Pin:
        """Hold the first page of `node` for a copy, until the pin is given to unpin."""
        assert node.parent is not None
        pin = node.pin
        if pin is None:
            node.pin = pin = Pin(node)
            self.locked += not node.lock
        pin.count += 1
        self.lock(node.parent)
        return pin

    def unpin(self, pin: Pin) -> None:
        """The copy has run, or never will. Of the node this is no use, of the path above it is."""
        node, pin.count = pin.node, pin.count - 1
        above = node.parent
        assert above is not None
        if not pin.count:
            node.pin = None
            if not node.lock:
                self.locked -= 1
                if node.older is None:
                    self.unused.restore(node)
                self._settle(node)
        self.unlock(above)

    def append(self, node: Node, edge: bytes, pages: bytes) -> Node:
        """Publish whole pages below `node`, which the caller has locked.

        Returns the node that ends with them; the caller's lock now reaches down to it.
        """
        is_own = node.lock == 1 and not node.children and node.parent is not None
        if is_own and not node.is_warm and len(node.pages) + len(pages) <= 4 * LONGEST_GROWN:
            self._count_in(pages)
            node.key += edge
            node.mark = None
            node.pages += pages
            return node
        return self.add_child(node, edge, pages)

    def add_child(self, node: Node, edge: bytes, pages: bytes) -> Node:
        """Publish a new child, locked once for the caller, who has locked `node`.

        edge: the ids of whole pages, or of the filled part of one page.
        """
        child = Node(node.namespace, edge, pages, node)
        child.lock = 1
        self._count_in(pages)
        node.add(child, self.stride)
        self.nodes += 1
        self._drop_covered(node, edge[: self.stride])
        return child

    def rekey(self, leaf: Node, key: bytes) -> None:
        """A partial leaf's page has been filled further: publish it under the longer key."""
        parent = leaf.parent
        assert parent is not None
        parent.drop(leaf, self.stride)
        leaf.key = key
        self.stamps.publish(leaf.pages)
        parent.add(leaf, self.stride)
        self._drop_covered(parent, key)

    def is_covered(self, node: Node, part: bytes) -> bool:
        """Whether a child of `node` begins with the partial page `part`."""
        children, _ = node.alike(part, 1)
        return any(child.key.startswith(part) for child in children)

    def cold_pages(self, node: Node) -> int:
        """How many pages of the path to `node` are not warm."""
        count = 0
        step: Node | None = node
        while step is not None and not step.is_warm:
            count += len(step.pages) // 4
            step = step.parent
        return count

    def keep_warm(self, node: Node) -> None:
        """From now on drop the path to `node`, which the caller has locked, after all else."""
        self.warm += self.cold_pages(node)
        step: Node | None = node
        while step is not None and not step.is_warm:
            step.is_warm = step.parent is not None
            step = step.parent

    def evict(self, n: int) -> bytes:
        """Drop n pages, warm ones last, else the least recently used first. The caller knows that n
        can go, and gets them."""
        parts = []
        while n > 0:
            leaf = self.unused.oldest()
            if leaf is None:
                raise RuntimeError(f"{n} more pages to evict, but no unlocked leaf is left")
            before = len(leaf.key)
            freed = self._drop(leaf, n, "evicted")
            self.evicted_tokens += (before - len(leaf.key)) // 4
            n -= len(freed) // 4
            parts.append(freed)
        return b"".join(parts)

    def flush(self) -> int:
        """Drop all that is neither locked nor pinned; returns how many tokens that were."""
        dropped = 0
        while (leaf := self.unused.oldest()) is not None:
            before = len(leaf.key)
            self.allocator.give(self._drop(leaf, len(leaf.pages) // 4, "flushed"))
            dropped += (before - len(leaf.key)) // 4
        return dropped

    def drop_since(self, step: int) -> None:
        """Drop every page published in `step` or later. None of them may be locked."""
        pending = list(self.roots.values())
        while pending:
            node = pending.pop()
            fresh = np.flatnonzero(self.stamps.of(node) >= step)
            if not len(fresh):
                pending.extend(node.all_children())
                continue
            if node.lock or node.pin is not None:
                raise RuntimeError(f"pages of step {step} are still locked: {node}")
            # A child is never published before its parent, so all that hangs below goes as well.
            self._remove_below(node)
            if fresh[0] == 0:
                self._remove(node)
            else:
                self.allocator.give(self._cut_off(node, int(fresh[0])))

    def _remove_below(self, top: Node) -> None:
        order = [top]
        for node in order:
            order.extend(node.all_children())
        for node in reversed(order[1:]):
            self._remove(node)

    def _split(self, node: Node, k: int) -> Node:
        """Cut `node` after k pages. Returns the new upper part, which the caller will lock; `node`
        stays the lower end, so that whoever locked it still holds the whole path."""
        parent, cut = node.parent, k * self.stride
        assert parent is not None
        upper = Node(node.namespace, node.key[:cut], node.pages[: 4 * k], parent)
        upper.lock, upper.time, upper.is_warm = node.lock, node.time, node.is_warm
        if node.pin is not None:
            upper.pin, node.pin = node.pin, None
            upper.pin.node = upper
        parent.swap(node, upper, self.stride)
        node.key, node.pages, node.parent = node.key[cut:], node.pages[4 * k :], upper
        upper.add(node, self.stride)
        self.nodes += 1
        return upper

    def _settle(self, node: Node) -> None:
        if node.lock or node.children or node.pin is not None:
            return
        if node.parent is None:
            self.roots.pop(node.namespace, None)
        elif len(node.key) < self.stride and self._has_longer(node.parent, node.key):
            self._remove(node)

    def _has_longer(self, node: Node, part: bytes) -> bool:
        children, at = node.alike(part, 2)
        return any(len(c.key) > len(part) and c.key.startswith(part) for c in children[at : at + 2])

    def _drop_covered(self, node: Node, first: bytes) -> None:
        """Drop the unlocked partial leaves that a new child makes useless."""
        if not node.partials:
            return
        for end in range(4, len(first), 4):
            leaf = node.child(first[:end], self.stride)
            if leaf is not None and leaf.lock == 0 and leaf.pin is None:
                self._remove(leaf)

    def _remove(self, leaf: Node) -> None:
        """Take an unlocked leaf out and free its pages."""
        self.allocator.give(self._take_out(leaf))

    def _drop(self, leaf: Node, n: int, cause: Cause) -> bytes:
        """Take up to n pages off the end of an unlocked leaf, and return them.

        A pinned page stays; a leaf that is no more than that is not listed until it is unpinned.
        """
        had = len(leaf.pages) // 4
        keep = had - n if had > n else int(leaf.pin is not None)
        if keep == had:
            self.unused.discard(leaf)
            return b""
        self.lost.note(leaf, keep, cause)
        return self._cut_off(leaf, keep) if keep else self._take_out(leaf)

    def _take_out(self, leaf: Node) -> bytes:
        """Take an unlocked leaf out, and return its pages; its parent may be the next to go."""
        parent, pages = leaf.parent, leaf.pages
        assert parent is not None
        parent.drop(leaf, self.stride)
        self.unused.discard(leaf)
        leaf.parent = None
        leaf.key = b""
        self.nodes -= 1
        self._count_out(leaf, pages)
        if not parent.lock and not parent.children:
            self._settle(parent)
        return pages

    def _cut_off(self, leaf: Node, keep: int) -> bytes:
        """Shorten an unlocked leaf to so many pages, and return the others."""
        freed = leaf.pages[4 * keep :]
        leaf.pages, leaf.key = leaf.pages[: 4 * keep], leaf.key[: keep * self.stride]
        leaf.mark = None
        self._count_out(leaf, freed)
        return freed

    def _count_in(self, pages: bytes) -> None:
        self.stamps.publish(pages)
        self.pages += len(pages) // 4
        self.locked += len(pages) // 4

    def _count_out(self, leaf: Node, pages: bytes) -> None:
        self.pages -= len(pages) // 4
        if leaf.is_warm:
            self.warm -= len(pages) // 4
