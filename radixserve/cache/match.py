"""Finding the longest cached prefix.

Owns: the walk down the tree and the choice of a page to copy from. Changes nothing. Must not know:
locks, leases, eviction.

Keys are bytes of int32 ids, walked with an offset: a child is found by its first id, and its whole
edge is one memcmp. `pos` and `cap` are byte offsets into the key, `stride` is the bytes of a page.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixserve.cache.allocator import INT32
from radixserve.cache.node import Node

# How many neighbours on each side are tried while the best partial match is not ready to be copied:
# first few, and where none of them is, which many requests of one step bring about, so many.
REACH = 4
FAR = 128


class StepStamps:
    """In which step each page was last published. step: the step now being planned."""

    __slots__ = ("by_page", "step")

    def __init__(self, num_pages: int) -> None:
        self.step = 0
        self.by_page: npt.NDArray[np.int64] = np.zeros(num_pages, dtype=np.int64)

    def publish(self, pages: bytes) -> None:
        self.by_page[np.frombuffer(pages, INT32)] = self.step

    def of(self, node: Node) -> npt.NDArray[np.int64]:
        """Of each of the node's pages, [n]."""
        return self.by_page[np.frombuffer(node.pages, INT32)]

    def is_ready(self, node: Node, index: int) -> bool:
        """Whether the node's page was written by an earlier step, so that it may be copied."""
        page = int.from_bytes(node.pages[4 * index : 4 * index + 4], "little")
        return bool(self.by_page[page] < self.step)


Match = tuple[Node, int, int, Node | None, int]
"""What the tree has of a key: (node, inside, depth, source, extra).

node: the deepest node of which a page matches; `inside` is how many of its pages do.
depth: matched whole pages, counted from the root.
source: the node with a page to copy from, of which `extra` tokens match. That page is the next one
of `node` itself where the match ends inside its edge, else the first one of a child.
"""


def walk(node: Node, key: bytes, pos: int, cap: int, stride: int) -> Match:
    """The whole pages of key[pos:cap] below `node`, which ends at `pos`."""
    while pos + stride <= cap:
        here = node.children.get(key[pos : pos + 4])
        if here is None:
            break
        if isinstance(here, Node) and here.after is None:
            child: Node | None = here
        else:
            child = here.find(key[pos : pos + stride], stride)
        if child is None:
            break
        edge = child.key
        size = len(edge)
        if stride <= size <= cap - pos and key.startswith(edge, pos):
            node = child
            pos += size
            continue
        inside = _whole_pages(edge, key, pos, cap, stride)
        if inside == 0:
            break
        return child, inside, pos // stride + inside, None, 0
    return node, len(node.pages) // 4, pos // stride, None, 0


def match(node: Node, key: bytes, pos: int, cap: int, stride: int, stamps: StepStamps) -> Match:
    """The whole pages of key[pos:cap] below `node`, and the best page to copy the rest from."""
    found = walk(node, key, pos, cap, stride)
    node, inside, depth, _, _ = found
    pos = depth * stride
    if pos >= cap:
        return found
    probe = key[pos : pos + stride if pos + stride < cap else cap]
    if 4 * inside == len(node.pages):
        if probe[:4] not in node.children:
            return found
        near, at = node.alike(probe, REACH)
        source, extra = _best_child(near, at, probe, stamps)
        if source is None and len(near) >= REACH:
            near, at = node.alike(probe, FAR)
            source, extra = _best_child(near, at, probe, stamps)
        return found if source is None else (node, inside, depth, source, extra)
    extra = common_tokens(node.key[inside * stride : (inside + 1) * stride], probe)
    if extra == 0 or not stamps.is_ready(node, inside):
        return found
    return node, inside, depth, node, extra


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
    near: list[Node], at: int, probe: bytes, stamps: StepStamps
) -> tuple[Node | None, int]:
    # In sorted order the common prefix only shrinks with the distance from the probe.
    source, best = None, 0
    for side in (near[at:], near[:at][::-1]):
        for child in side:
            extra = common_tokens(child.key[: len(probe)], probe)
            if extra <= best:
                break
            if stamps.is_ready(child, 0):
                source, best = child, extra
                break
    return source, best


def _whole_pages(edge: bytes, key: bytes, pos: int, cap: int, stride: int) -> int:
    """How many pages of the edge the key begins with at `pos`; the edge may be less than one."""
    if len(edge) < stride or not key.startswith(edge[:stride], pos):
        return 0
    n = min(len(edge), cap - pos)
    if key.startswith(edge[:n], pos):
        return n // stride
    ours = np.frombuffer(edge, np.int32, n // 4)
    theirs = np.frombuffer(key, np.int32, n // 4, pos)
    return int((ours != theirs).argmax()) * 4 // stride
