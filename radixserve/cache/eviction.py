"""Which leaf goes first.

Owns: the order of unlocked leaves by last use, the warm ones behind all others. Must not know: what
eviction frees, or for whom.
"""

from __future__ import annotations

import heapq

from radixserve.cache.node import Node

_Entry = tuple[bool, int, int, Node]


class LeafQueue:
    """A heap of unlocked leaves, least recently used first, warm ones last.

    Entries are not removed when a leaf is locked, used or gains a child; they are skipped when they
    come up, and swept when they outnumber the live ones. Both costs are amortised over the pushes.
    """

    __slots__ = ("_heap", "_sweep_at")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._sweep_at = 64

    def push(self, node: Node) -> None:
        """List an unlocked leaf under its own last use."""
        if node.queued == node.time:
            return
        node.queued = node.time
        heapq.heappush(self._heap, (node.is_warm, node.time, node.serial, node))
        if len(self._heap) > self._sweep_at:
            self._sweep()

    def oldest(self) -> Node | None:
        """The unlocked leaf to drop next; it stays listed as long as it lives."""
        heap = self._heap
        while heap:
            entry = heap[0]
            _, time, _, node = entry
            if _is_current(entry):
                return node
            heapq.heappop(heap)
            if node.queued == time:
                node.queued = None
        return None

    def _sweep(self) -> None:
        live = []
        for entry in self._heap:
            if _is_current(entry):
                live.append(entry)
            elif entry[3].queued == entry[1]:
                entry[3].queued = None
        heapq.heapify(live)
        self._heap = live
        self._sweep_at = max(64, 2 * len(live))

    def nodes(self) -> list[Node]:
        """The leaves that are listed and evictable now, in no order."""
        return [entry[3] for entry in self._heap if _is_current(entry)]


def _is_current(entry: _Entry) -> bool:
    _, time, _, node = entry
    is_evictable = node.lock == 0 and node.parent is not None and not node.children
    return is_evictable and node.time == time == node.queued
