"""Finding the longest cached prefix.

Owns: the walk down the tree and the choice of a page to copy from. Changes nothing. Must not know:
locks, leases, eviction.

Keys are bytes of int32 ids, walked with an offset: a whole edge is one memcmp, and a child is found
by the bytes of its first page. `pos` and `cap` are byte offsets into the key, `stride` is the bytes
of a page.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from radixserve.cache.node import Node
from radixserve.plan import Int32

# How many neighbours on each side are tried while the best partial match is not ready to be copied.
REACH = 4


class StepStamps:
    """In which step each page was last published. step: the step now being planned."""

    __slots__ = ("by_page", "step")

    def __init__(self, num_pages: int) -> None:
        self.step = 0
        self.by_page = np.zeros(num_pages, dtype=np.int64)

    def publish(self, pages: Int32) -> None:
        self.by_page[pages] = self.step

    def is_ready(self, node: Node, index: int) -> bool:
        """Whether the node's page was written by an earlier step, so that it may be copied."""
        return bool(self.by_page[node.pages[index]] < self.step)


class Match(NamedTuple):
    """What the tree has of a key.

    node: the deepest node of which a page matches; `inside` is how many of its pages do.
    depth: matched whole pages, counted from the root.
    source: the node with a page to copy from, of which `extra` tokens match. That page is the next
    one of `node` itself where the match ends inside its edge, else the first one of a child.
    """

    node: Node
    inside: int
    depth: int
    source: Node | None = None
    extra: int = 0


_new = tuple.__new__  # a third of the time of Match(..), and a walk takes little more


def walk(node: Node, key: bytes, pos: int, cap: int, stride: int) -> Match:
    """The whole pages of key[pos:cap] below `node`, which ends at `pos`."""
    while pos + stride <= cap:
        child = node.children.get(key[pos : pos + stride])
        if child is None:
            break
        edge = child.key
        end = pos + len(edge)
        if end <= cap and key.startswith(edge, pos):
            node = child
            pos = end
            continue
        inside = _edge_bytes(edge, key, pos, cap) // stride
        return _new(Match, (child, inside, pos // stride + inside, None, 0))
    return _new(Match, (node, len(node.pages), pos // stride, None, 0))


def match(node: Node, key: bytes, pos: int, cap: int, stride: int, stamps: StepStamps) -> Match:
    """The whole pages of key[pos:cap] below `node`, and the best page to copy the rest from."""
    found = walk(node, key, pos, cap, stride)
    node, inside, depth, _, _ = found
    pos = depth * stride
    probe = key[pos : pos + stride if pos + stride < cap else cap]
    if not probe:
        return found
    if inside == len(node.pages):
        if node.order is None or probe[:4] not in node.order.by_id:
            return found
        near, at = node.order.around(probe, REACH)
        source, extra = _best_child(node, near, at, probe, stamps)
        return found if source is None else Match(node, inside, depth, source, extra)
    extra = common_tokens(node.key[inside * stride : (inside + 1) * stride], probe)
    if extra == 0 or not stamps.is_ready(node, inside):
        return found
    return Match(node, inside, depth, node, extra)


def common_tokens(a: bytes, b: bytes) -> int:
    """Leading int32 ids that a and b, each at most about a page long, have in common."""
    if a[:4] != b[:4]:  # mostly so, and the rest costs ten times as much
        return 0
    n = min(len(a), len(b))
    differing = int.from_bytes(a[:n], "little") ^ int.from_bytes(b[:n], "little")
    if not differing:
        return n // 4
    return ((differing & -differing).bit_length() - 1) // 32


def _best_child(
    node: Node, near: list[bytes], at: int, probe: bytes, stamps: StepStamps
) -> tuple[Node | None, int]:
    # In sorted order the common prefix only shrinks with the distance from the probe.
    source, best = None, 0
    for side in (near[at:], near[:at][::-1]):
        for key in side:
            extra = common_tokens(key, probe)
            if extra <= best:
                break
            child = node.children[key]
            if stamps.is_ready(child, 0):
                source, best = child, extra
                break
    return source, best


def _edge_bytes(edge: bytes, key: bytes, pos: int, cap: int) -> int:
    n = min(len(edge), cap - pos)
    if key.startswith(edge[:n], pos):
        return n
    ours = np.frombuffer(edge, np.int32, n // 4)
    theirs = np.frombuffer(key, np.int32, n // 4, pos)
    return int((ours != theirs).argmax()) * 4
