"""Many keys in order, cheap to find and to change at any number.

Owns: the order. Must not know: nodes, pages.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

_BLOCK = 512


class OrderedKeys:
    """A sorted list cut into blocks, so that one change moves at most two blocks of pointers.

    A single list would move all keys behind the change: at 100,000 children of one node that costs
    more than everything else in an eviction.
    """

    __slots__ = ("_blocks", "_lasts")

    def __init__(self) -> None:
        self._blocks: list[list[bytes]] = []
        self._lasts: list[bytes] = []

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    @property
    def is_empty(self) -> bool:
        return not self._blocks

    def all(self) -> list[bytes]:
        """All keys, ascending."""
        return [key for block in self._blocks for key in block]

    def add(self, key: bytes) -> None:
        """Insert a key that is not there."""
        if not self._blocks:
            self._blocks.append([key])
            self._lasts.append(key)
            return
        at = min(bisect_left(self._lasts, key), len(self._lasts) - 1)
        block = self._blocks[at]
        insort(block, key)
        if len(block) > 2 * _BLOCK:
            self._blocks.insert(at + 1, block[_BLOCK:])
            self._lasts.insert(at + 1, block[-1])
            del block[_BLOCK:]
        self._lasts[at] = block[-1]

    def remove(self, key: bytes) -> None:
        """Remove a key that is there. Raises KeyError when it is not."""
        at = bisect_left(self._lasts, key)
        block = self._blocks[at] if at < len(self._blocks) else []
        i = bisect_left(block, key)
        if i == len(block) or block[i] != key:
            raise KeyError(key)
        del block[i]
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at], self._lasts[at]

    def after(self, key: bytes) -> bytes | None:
        """The smallest key greater than `key`."""
        at = bisect_right(self._lasts, key)
        if at == len(self._blocks):
            return None
        block = self._blocks[at]
        return block[bisect_right(block, key)]

    def around(self, probe: bytes, reach: int) -> tuple[list[bytes], int]:
        """Up to `reach` keys on each side of `probe`, ascending, and where probe would stand.

        With keys a, c, e, g: around(d, 1) == ([c, e], 1).
        """
        if not self._blocks:
            return [], 0
        at = min(bisect_left(self._lasts, probe), len(self._lasts) - 1)
        block = self._blocks[at]
        i = bisect_left(block, probe)
        near = block[max(i - reach, 0) : i + reach]
        before = min(i, reach)
        if before < reach and at > 0:
            more = self._blocks[at - 1][before - reach :]
            near = more + near
            before += len(more)
        if i + reach > len(block) and at + 1 < len(self._blocks):
            near += self._blocks[at + 1][: i + reach - len(block)]
        return near, before
