"""The free pages of the KV pool.

Owns: which pages nobody has. Must not know: what a page holds, who has the others.

Pages come and go as the bytes of their int32 ids: mostly there are a few, of which numpy would take
several times as long.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixserve.plan import Int32

INT32 = np.dtype(np.int32)


class PageAllocator:
    """A stack of page ids; what is given back last is handed out first, in the same order.

    `free` is the number of pages on the stack, `total` the size of the pool. is_checked: a page
    that is given back twice is noticed at once (for tests and debugging).
    """

    __slots__ = ("_is_free", "_stack", "free", "total")

    def __init__(self, total: int, *, is_checked: bool = False) -> None:
        if total < 1:
            raise ValueError(f"the KV pool needs at least one page, not {total}")
        self.total = total
        self.free = total
        # It grows to the left: its top is at total - free. (A bytearray itself is slower to slice.)
        self._stack = memoryview(bytearray(np.arange(total, dtype=INT32).tobytes()))
        self._is_free: npt.NDArray[np.bool_] | None = None
        if is_checked:
            self._is_free = np.ones(total, dtype=np.bool_)

    def take(self, n: int) -> bytes:
        """n pages. Raises RuntimeError when fewer are free."""
        free = self.free
        if n > free:
            raise RuntimeError(f"{n} pages taken, {free} of {self.total} are free")
        top = 4 * (self.total - free)
        pages = self._stack[top : top + 4 * n].tobytes()
        self.free = free - n
        if self._is_free is not None:
            self._is_free[np.frombuffer(pages, INT32)] = False
        return pages

    def give(self, pages: bytes) -> None:
        """Take pages back, each of them once. Raises RuntimeError for more than are out, and, where
        it is checked, for one that is free already."""
        size = len(pages)
        n, top = size // 4, 4 * (self.total - self.free)
        if size > top:
            raise RuntimeError(f"{n} pages given back, {top // 4} are out")
        if self._is_free is not None:
            ids = np.frombuffer(pages, INT32)
            if self._is_free[ids].any():
                raise RuntimeError(f"pages freed twice: {ids[self._is_free[ids]].tolist()}")
            self._is_free[ids] = True
        self._stack[top - size : top] = pages
        self.free += n

    def free_pages(self) -> Int32:
        """The free pages, [free] int32, in no promised order."""
        return np.frombuffer(self._stack.tobytes(), INT32)[self.total - self.free :]
