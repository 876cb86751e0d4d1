"""What the cache has had and dropped.

Owns: a bounded memory of dropped edges. Must not know: who asks, when pages are dropped.

An edge is remembered by its bytes and by a mark of the prefix before it: a checksum that runs on
over any number of pages in one call, so that dropping an edge costs no more than a few tables. Two
prefixes with one mark would make an explanation wrong, and nothing else.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple
from zlib import crc32

from radixserve.cache.node import Node

Cause = Literal["evicted", "flushed"]


class Lost(NamedTuple):
    """tokens: of the key, counted from its beginning, that the cache has had at some time."""

    tokens: int
    cause: Cause


_Dropped = tuple[int, bytes, int, Cause]
"""An edge: the mark of the prefix before it, its ids, how many of its pages are remembered, why it
went. A plain tuple, for one is made while room is."""


class _Edge:
    """pages: how many of the edge's are still remembered; serial: later ones were dropped later."""

    __slots__ = ("cause", "ids", "pages", "place", "serial")

    def __init__(self, dropped: _Dropped, stride: int, serial: int) -> None:
        mark, self.ids, self.pages, self.cause = dropped
        self.place = mark, self.ids[:stride]
        self.serial = serial


class LostPages:
    """Remembers the last `capacity` pages that were dropped; stride: bytes of a page's ids.

    Where to find an edge is noted when somebody asks for one, not while room is made.
    """

    __slots__ = ("_capacity", "_edges", "_fresh", "_held", "_places", "_serial", "_stride")

    def __init__(self, capacity: int, stride: int) -> None:
        self._capacity = capacity
        self._stride = stride
        self._edges: deque[_Edge] = deque()  # older than all that is fresh
        self._fresh: deque[_Dropped] = deque()
        self._places: dict[tuple[int, bytes], list[_Edge]] = {}  # by mark and first page
        self._held = 0
        self._serial = 0

    def __len__(self) -> int:
        return self._held

    def note(self, node: Node, keep: int, cause: Cause) -> None:
        """The node's pages behind the first `keep` are about to be dropped."""
        above = node.parent
        assert above is not None
        mark = above.mark
        if mark is None:
            mark = mark_of(above)
        ids = node.key
        if keep:
            cut = keep * self._stride
            mark, ids = crc32(ids[:cut], mark), ids[cut:]
        pages = len(node.pages) // 4 - keep
        self._fresh.append((mark, ids, pages, cause))
        self._held = held = self._held + pages
        if held > self._capacity:
            self._forget(held - self._capacity)

    def _forget(self, pages: int) -> None:
        """The oldest go first, of each edge the end."""
        self._held -= pages
        while pages and self._edges:
            edge = self._edges[0]
            if edge.pages > pages:
                edge.pages -= pages
                return
            pages -= edge.pages
            self._edges.popleft()
            here = self._places[edge.place]
            here.remove(edge)
            if not here:
                del self._places[edge.place]
        while pages:
            mark, ids, had, cause = self._fresh.popleft()
            left = had - pages
            if left > 0:
                self._fresh.appendleft((mark, ids, left, cause))
                return
            pages = -left

    def _place(self) -> None:
        while self._fresh:
            self._serial += 1
            edge = _Edge(self._fresh.popleft(), self._stride, self._serial)
            self._edges.append(edge)
            self._places.setdefault(edge.place, []).append(edge)

    def find(self, namespace: str, key: bytes, pos: int) -> Lost | None:
        """The longest beginning of the key that has been there and reaches past byte `pos`, at
        least the whole pages before which are in the tree."""
        self._place()
        stride, mark = self._stride, crc32(namespace.encode())
        end, serial, found = pos, 0, None
        for at in range(0, len(key) - stride + 1, stride):
            page = key[at : at + stride]
            for edge in self._places.get((mark, page), ()):
                reach = at + self._reach(edge, key, at)
                if reach > end or (reach == end > pos and edge.serial > serial):
                    end, serial, found = reach, edge.serial, Lost(reach // 4, edge.cause)
            mark = crc32(page, mark)
        border = pos - pos % stride if found is None else end
        return self._part(namespace, key, border, max(pos, border)) or found

    def _reach(self, edge: _Edge, key: bytes, at: int) -> int:
        """Bytes of the whole pages that the edge has in common with the key from `at` on."""
        stride = self._stride
        known = edge.ids[: edge.pages * stride]
        if key.startswith(known, at):
            return len(known)
        page = 0
        while key.startswith(known[page : page + stride], at + page):
            page += stride
        return page

    def _part(self, namespace: str, key: bytes, border: int, pos: int) -> Lost | None:
        """The same of a page that was published before it was full; it begins at `border`."""
        mark = crc32(key[:border], crc32(namespace.encode()))
        for end in range(min(len(key), border + self._stride - 4), pos, -4):
            if edges := self._places.get((mark, key[border:end])):
                return Lost(end // 4, edges[-1].cause)
        return None


def mark_of(node: Node) -> int:
    """The mark of the prefix that ends with the node.

    It is kept in the node, which forgets it when its end changes.
    """
    missing = []
    step: Node | None = node
    while step is not None and step.mark is None:
        missing.append(step)
        step = step.parent
    mark = 0 if step is None or step.mark is None else step.mark
    for below in reversed(missing):
        seed = crc32(below.namespace.encode()) if below.parent is None else mark
        mark = below.mark = crc32(below.key, seed)
    return mark
