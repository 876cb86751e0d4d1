"""The free pages of the KV pool.

Owns: which pages nobody has. Must not know: what a page holds, who has the others.
"""

from __future__ import annotations

import numpy as np

from radixserve.plan import Int32


class PageAllocator:
    """A stack of page ids; the page given back last is handed out first.

    `free` is the number of pages on the stack, `total` the size of the pool.
    """

    __slots__ = ("_is_free", "_stack", "free", "total")

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"the KV pool needs at least one page, not {total}")
        self.total = total
        self.free = total
        self._stack: Int32 = np.arange(total - 1, -1, -1, dtype=np.int32)
        self._is_free = np.ones(total, dtype=np.bool_)

    def take(self, n: int) -> Int32:
        """n pages, [n] int32. Raises RuntimeError when fewer are free."""
        if n > self.free:
            raise RuntimeError(f"{n} pages taken, {self.free} of {self.total} are free")
        rest = self.free - n
        pages = self._stack[rest : self.free][::-1].copy()
        self._is_free[pages] = False
        self.free = rest
        return pages

    def give(self, pages: Int32) -> None:
        """Take pages back, each of them once. Raises RuntimeError when one is free already."""
        if np.count_nonzero(self._is_free[pages]):
            raise RuntimeError(f"pages freed twice: {pages[self._is_free[pages]].tolist()}")
        self._is_free[pages] = True
        top = self.free + len(pages)
        self._stack[self.free : top] = pages[::-1]
        self.free = top

    def free_pages(self) -> Int32:
        """The free pages, [free] int32, in no promised order."""
        return self._stack[: self.free].copy()
