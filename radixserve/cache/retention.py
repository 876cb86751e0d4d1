"""The KV of programs between two of their calls, kept against eviction for a while.

Owns: which ends of the tree are kept for whom and until when, and that they hold no more than a
share of the pool. Must not know: requests, the queue, why a program has ended.

Keeping is soft. Nothing is locked: what is kept counts as evictable everywhere, and refuses nobody
a page. Right before the tree evicts, all that is kept is used once more, oldest first, and so goes
behind all that is not (but before what is warm). A path is kept from its root on; when its end has
been evicted all the same, it is let go. Programs that wait for a tool are served by this: see
Continuum (arXiv 2511.02230), which pins what is kept, with a time to live.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from radixserve.cache.lease import Lease
from radixserve.cache.node import Node
from radixserve.cache.tree import RadixTree
from radixserve.plan import Int32

Owner = tuple[str, str]
"""A program: its namespace and its id there."""

MOST = 512
"""Ends that are kept at one time, lest going through them take a step's time."""


class _End(NamedTuple):
    """node: deepest whole pages. tail: the partial leaf below it, if there was one. pages: of the
    path down to there."""

    node: Node
    tail: Node | None
    pages: Int32

    def deepest(self) -> Node | None:
        """What of it is still in the tree."""
        if self.tail is not None and self.tail.parent is not None:
            return self.tail
        return None if self.node.parent is None else self.node


class _Kept:
    """What is kept for one program: the ends by call, the oldest first."""

    __slots__ = ("ends", "until")

    def __init__(self) -> None:
        self.ends: OrderedDict[str, _End] = OrderedDict()
        self.until = 0.0


class Retention:
    """share: of the pool's pages that may be kept. seconds: since a program's last call, begun or
    ended. With either at 0 nothing is kept. clock: seconds, monotonic.

    pages: how many are kept now.
    """

    __slots__ = (
        "_clock",
        "_ends",
        "_kept",
        "_limit",
        "_seconds",
        "_seen",
        "_tree",
        "_users",
        "pages",
    )

    def __init__(
        self,
        tree: RadixTree,
        share: float = 0.0,
        seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pages = 0
        self._tree = tree
        self._limit = int(tree.allocator.total * share)
        self._seconds = seconds
        self._clock = clock
        self._kept: OrderedDict[Owner, _Kept] = OrderedDict()  # by `until`
        self._users = np.zeros(tree.allocator.total if self._limit else 0, np.int32)
        self._ends = 0
        self._seen = -1

    def __len__(self) -> int:
        """Programs for which something is kept."""
        return len(self._kept)

    @property
    def limit(self) -> int:
        """Pages that may be kept at one time."""
        return self._limit

    def keep(self, lease: Lease, owner: Owner, call: str, parent: str = "") -> None:
        """Keep all that the lease has published, for the calls that go on from `call`.

        It takes the place of what `parent`, from which `call` went on, has left. Where too much
        would be kept, the oldest of others' goes, then the oldest of the program's own.
        """
        if not self._limit or not self._seconds or lease.deepest.parent is None:
            return
        self._expire()
        kept = self._kept.setdefault(owner, _Kept())
        self._renew(owner, kept)
        for name in (parent, call):
            self._let_go(kept, name)
        pages = lease.pages[: lease.depth + (lease.tail is not None)]
        kept.ends[call] = _End(lease.node, lease.tail, pages)
        self._ends += 1
        users = self._users[pages]
        self.pages += int(np.count_nonzero(users == 0))
        self._users[pages] = users + 1
        while self.pages > self._limit or self._ends > MOST:
            self._drop_oldest()

    def renew(self, owner: Owner) -> None:
        """Another call of the program has come."""
        kept = self._kept.get(owner)
        if kept is not None:
            self._renew(owner, kept)

    def forget(self, owner: Owner) -> None:
        """The program has ended: what is kept for it is like all else from now on."""
        kept = self._kept.pop(owner, None)
        if kept is not None:
            for call in list(kept.ends):
                self._let_go(kept, call)

    def clear(self) -> None:
        """Keep nothing from now on of what was kept."""
        for owner in list(self._kept):
            self.forget(owner)

    def refresh(self) -> None:
        """To be called before the tree evicts: put what is kept behind all that is not."""
        if not self._kept:
            return
        self._expire()
        if self._seen == self._tree.uses:
            return
        for owner in list(self._kept):
            self._use(owner)
        self._seen = self._tree.uses

    def _use(self, owner: Owner) -> None:
        kept = self._kept[owner]
        for call, end in list(kept.ends.items()):
            node = end.deepest()
            if node is None:
                self._let_go(kept, call)
            elif not node.lock:
                self._tree.lock(node)
                self._tree.unlock(node)
        if not kept.ends:
            del self._kept[owner]

    def _renew(self, owner: Owner, kept: _Kept) -> None:
        kept.until = self._clock() + self._seconds
        self._kept.move_to_end(owner)

    def _expire(self) -> None:
        now = self._clock()
        while self._kept:
            owner, kept = next(iter(self._kept.items()))
            if kept.until > now:
                return
            self.forget(owner)

    def _drop_oldest(self) -> None:
        owner, kept = next(iter(self._kept.items()))
        self._let_go(kept, next(iter(kept.ends)))
        if not kept.ends:
            del self._kept[owner]

    def _let_go(self, kept: _Kept, call: str) -> None:
        end = kept.ends.pop(call, None)
        if end is not None:
            self._ends -= 1
            users = self._users[end.pages] - 1
            self._users[end.pages] = users
            self.pages -= int(np.count_nonzero(users == 0))
