"""The free pages of the KV pool.

Owns: which pages nobody has. Must not know: what a page holds, who has the others.
"""

from __future__ import annotations

import numpy as np

from radixserve.plan import Int32


class PageAllocator:
    """A stack of page ids; what is given back last is handed out first, in the same order.

    `free` is the number of pages on the stack, `total` the size of the pool. is_checked: a page
    that is given back twice is noticed at once (twice the time; for tests and debugging).
    """

    __slots__ = ("_is_free", "_stack", "free", "total")

    def __init__(self, total: int, *, is_checked: bool = False) -> None:
        if total < 1:
            raise ValueError(f"the KV pool needs at least one page, not {total}")
        self.total = total
        self.free = total
        # It grows to the left: its top is at total - free.
        self._stack: Int32 = np.arange(total, dtype=np.int32)
        self._is_free = np.ones(total, dtype=np.bool_) if is_checked else None

    def take(self, n: int) -> Int32:
        """n pages, [n] int32. Raises RuntimeError when fewer are free."""
        pages = np.empty(n, dtype=np.int32)
        self.fill(pages, 0)
        return pages

    def fill(self, table: Int32, start: int) -> None:
        """Write pages to table[start:]. Raises RuntimeError when fewer are free."""
        n, free = len(table) - start, self.free
        if n > free:
            raise RuntimeError(f"{n} pages taken, {free} of {self.total} are free")
        top = self.total - free
        table[start:] = self._stack[top : top + n]
        self.free = free - n
        if self._is_free is not None:
            self._is_free[table[start:]] = False

    def give(self, pages: Int32) -> None:
        """Take pages back, each of them once. Raises RuntimeError for more than are out, and, where
        it is checked, for one that is free already."""
        n, free = len(pages), self.free
        top = self.total - free
        if n > top:
            raise RuntimeError(f"{n} pages given back, {top} are out")
        if self._is_free is not None:
            if self._is_free[pages].any():
                raise RuntimeError(f"pages freed twice: {pages[self._is_free[pages]].tolist()}")
            self._is_free[pages] = True
        self._stack[top - n : top] = pages
        self.free = free + n

    def free_pages(self) -> Int32:
        """The free pages, [free] int32, in no promised order."""
        return self._stack[self.total - self.free :].copy()
