"""What the cache has had and dropped.

Owns: a bounded memory of dropped pages. Must not know: who asks, when pages are dropped.

A page is remembered by a mark: the hash of the whole prefix that ends with it, made from the mark
before it and the page's ids. So remembering a page costs one hash, and so does looking it up. Two
prefixes with one mark would make an explanation wrong, and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, NamedTuple

from radixserve.cache.node import Node

Cause = Literal["evicted", "flushed"]


class Lost(NamedTuple):
    """tokens: of the key, counted from its beginning, that the cache has had at some time."""

    tokens: int
    cause: Cause


class LostPages:
    """Remembers the last `capacity` pages that were dropped; stride: bytes of a page's ids."""

    __slots__ = ("_capacity", "_causes", "_stride")

    def __init__(self, capacity: int, stride: int) -> None:
        self._capacity = capacity
        self._stride = stride
        self._causes: OrderedDict[int, Cause] = OrderedDict()

    def __len__(self) -> int:
        return len(self._causes)

    def note(self, node: Node, keep: int, cause: Cause) -> None:
        """The node's pages behind the first `keep` are about to be dropped."""
        causes = self._causes
        for mark in reversed(marks_of(node, self._stride)[keep + 1 :]):
            causes[mark] = cause
            causes.move_to_end(mark)
        while len(causes) > self._capacity:
            causes.popitem(last=False)

    def find(self, namespace: str, key: bytes, pos: int) -> Lost | None:
        """The longest beginning of the key that has been there and reaches past byte `pos`, at
        least the whole pages before which are in the tree."""
        stride, mark = self._stride, hash(namespace)
        found: Lost | None = None
        for at in range(0, len(key) - stride + 1, stride):
            mark = hash((mark, key[at : at + stride]))
            if at + stride > pos and (cause := self._causes.get(mark)) is not None:
                found = Lost((at + stride) // 4, cause)
        border = pos - pos % stride if found is None else found.tokens * 4
        return self._part(namespace, key, border, max(pos, border)) or found

    def _part(self, namespace: str, key: bytes, border: int, pos: int) -> Lost | None:
        """The same of a page that was published before it was full; it begins at `border`."""
        mark = hash(namespace)
        for at in range(0, border, self._stride):
            mark = hash((mark, key[at : at + self._stride]))
        for end in range(min(len(key), border + self._stride - 4), pos, -4):
            cause = self._causes.get(hash((mark, key[border:end])))
            if cause is not None:
                return Lost(end // 4, cause)
        return None


def marks_of(node: Node, stride: int) -> list[int]:
    """The marks of the prefixes that end before the node's first page and with each of its pages.

    They are kept in the node, which forgets those that a change of its pages makes wrong.
    """
    missing = []
    step: Node | None = node
    while step is not None and not step.marks:
        missing.append(step)
        step = step.parent
    for below in reversed(missing):
        above = below.parent
        below.marks.append(hash(below.namespace) if above is None else marks_of(above, stride)[-1])
    marks = node.marks
    del marks[len(node.pages) + 1 :]
    for page in range(len(marks) - 1, len(node.pages)):
        marks.append(hash((marks[-1], node.key[page * stride : (page + 1) * stride])))
    return marks
