"""The prefix cache: five verbs that give requests their pages and share what is computed.

Owns: who has which page at any time: free, in the tree, or leased only. Must not know: requests,
steps (beyond their number), tensors.

Keys are bytes of int32 ids. A page belongs to one writer; only whole pages are shared by reference,
and what is shared of a page not yet full is copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from radixserve.cache.allocator import PageAllocator
from radixserve.cache.audit import audit
from radixserve.cache.bookmark import Bookmark
from radixserve.cache.explain import explain, listing
from radixserve.cache.lease import CopySources, Lease
from radixserve.cache.node import Node
from radixserve.cache.publish import drop_copy, match_again, order_copy, publish, publish_tail
from radixserve.cache.retention import Retention
from radixserve.cache.tree import RadixTree
from radixserve.wire.cache import CacheReport, CacheStats, TreeNode


class PrefixCache:
    """num_pages pages of page_size tokens.

    enabled=False: nothing matches and nothing is published; pages come and go the same way.
    audit=True: every invariant is checked after each verb (slow; for tests and debugging).
    warm_share: share of the pages that keep_warm may have kept at one time.
    retention: what is kept for programs; nothing until keep_for_programs is called.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        enabled: bool = True,
        audit: bool = False,
        warm_share: float = 0.25,
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, not {page_size}")
        self.page_size = page_size
        self._is_enabled = enabled
        self._is_audited = audit
        self._warm_limit = int(num_pages * warm_share)
        self._allocator = PageAllocator(num_pages, is_checked=audit)
        self._tree = RadixTree(self._allocator, page_size)
        self._sources = CopySources(self._tree)
        self._leases: set[Lease] = set()
        self.retention = Retention(self._tree)

    def keep_for_programs(
        self, share: float, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """From now on keep what programs leave; see Retention for the arguments."""
        self.retention = Retention(self._tree, share, seconds, clock)

    # Steps

    def begin_step(self) -> int:
        """A new step is being planned; returns its number. What was published so far is written
        before this step runs, so from now on it may be copied."""
        self._tree.stamps.step += 1
        return self._tree.stamps.step

    def end_step(self, step: int) -> None:
        """The step has been applied: the pages it copied from are unpinned."""
        self._sources.release(step)
        self._check()

    def drop_since(self, step: int) -> None:
        """A step failed: forget everything published in it or later.

        The caller has waited for every launched step and released every lease; raises
        RuntimeError when a page to drop is still locked.
        """
        self._sources.release_all()
        self._tree.drop_since(step)
        self._check()

    # The verbs

    def peek(self, namespace: str, key: bytes, limit: int | None = None) -> int:
        """How many tokens acquire would find. Changes nothing, not even the order of eviction."""
        cap = self._cap(key, limit)
        root = self._tree.roots.get(namespace)
        if root is None:
            return 0
        _, _, depth, _, extra = self._tree.match(root, key, 0, cap)
        return depth * self.page_size + extra

    def look(self, bookmark: Bookmark) -> int:
        """Like peek; a later look costs no more than what has come to the match since."""
        return bookmark.look(self._tree) if self._is_enabled else 0

    def acquire(
        self, namespace: str, key: bytes, *, limit: int | None = None, reserve_pages: int = 0
    ) -> Lease | None:
        """Lock the longest match of key and take pages for the rest, evicting where needed.

        At most len - 1 tokens match, and at most `limit`, now and in every later advance. None, and
        nothing changed, when there are too few pages, or fewer than reserve_pages would be
        available afterwards. Raises ValueError for an empty key or a negative limit.

        Worked example, page_size 4: of a key of 11 tokens the tree has 6. The lease gets the tree's
        first page and two of its own; matched is 6, and a copy order brings 2 tokens into the first
        of these.
        """
        cap = self._cap(key, limit)
        tree = self._tree
        root = tree.roots.get(namespace) or Node(namespace, b"", b"", None)
        found = tree.match(root, key, 0, cap)
        node, inside, depth, source, extra = found
        own = -(-len(key) // tree.stride) - depth
        spare = self.available_pages - own - reserve_pages
        if not node.lock:
            spare -= tree.unlocked_pages(found)
        if spare < 0:
            return None
        if 4 * inside < len(node.pages):
            node = tree.claim(found)
        tree.roots.setdefault(namespace, root)
        shared = tree.lock(node)
        pin = None
        # While it is pinned, a page to copy from is one page less to evict.
        if source is not None and (spare > 0 or source.lock or source.pin is not None):
            pin = tree.pin(source)
        lease = Lease(namespace, key, cap, node, shared + self._take(own), self._sources, depth)
        lease.matched = depth * self.page_size
        if pin is not None:
            lease.matched += extra
            order_copy(lease, pin, extra)
        self._leases.add(lease)
        if self._is_audited:
            self.audit()
        return lease

    def advance(self, lease: Lease, computed: int) -> int:
        """Match again before the next prefill chunk: others may have computed what comes next.

        computed: leading tokens that launched steps or a match have covered; on a page border,
        unless it is lease.matched before anything was computed. Returns the new count, never less.
        What is computed is published first, as whole pages. Pages no longer needed go back; a copy
        order may be pending afterwards.
        """
        self._require_live(lease)
        if not 0 <= computed * 4 <= len(lease.key) or computed < lease.depth * self.page_size:
            raise ValueError(
                f"computed is {computed}, of {len(lease.key) // 4} tokens of which "
                f"{lease.depth * self.page_size} are in the tree"
            )
        # Behind a published tail nothing is left to match: its last tokens are computed.
        if self._is_enabled and lease.tail is None:
            whole = computed // self.page_size
            publish(self._tree, lease, lease.key, whole, whole)
            computed = match_again(self._tree, lease, computed)
        self._check()
        return computed

    def grow(self, lease: Lease, tokens: int) -> bool:
        """Make lease.table cover `tokens` tokens; False, and nothing changed, when it cannot."""
        self._require_live(lease)
        more = -(-tokens // self.page_size) - len(lease.table) // 4
        if more > self.available_pages:
            return False
        if more > 0:
            lease.table += self._take(more)
        self._check()
        return True

    def commit(self, lease: Lease, key: bytes, length: int, written: int) -> None:
        """Publish tokens [0, length) of key, which begins with what the lease has published before.

        [0, written) have been computed by launched steps, [written, length) will be by the step now
        being planned. Whole pages go to the tree by reference; where the tree has a written page
        already, the lease moves onto the tree's and its own is freed; at a page still to be written
        that the tree has already, publishing stops until a later commit. When written == length the
        filled part of the last page is published too, and stays the lease's to write on. May change
        lease.table: a row's page table is written after it, never before.
        """
        self._require_live(lease)
        if not 0 <= written <= length <= len(key) // 4:
            raise ValueError(f"written {written}, length {length}, key of {len(key) // 4} tokens")
        if length * 4 > len(lease.table) * self.page_size:
            raise ValueError(f"{length} tokens published from {len(lease.table) // 4} pages")
        if self._is_enabled:
            publish(self._tree, lease, key, length // self.page_size, written // self.page_size)
            if written == length and lease.depth == length // self.page_size:
                part = key[lease.depth * self._tree.stride : length * 4]
                publish_tail(self._tree, lease, part)
        self._check()

    def release(self, lease: Lease) -> None:
        """Give everything back. What was published stays, unlocked. Once only: RuntimeError."""
        self._require_live(lease)
        if lease.copy is not None:
            drop_copy(self._tree, lease)
        own = lease.own_table
        self._tree.unlock(lease.node if lease.tail is None else lease.tail)
        if own:
            self._allocator.give(own)
        lease.end()
        self._leases.discard(lease)
        self._check()

    def keep_warm(self, lease: Lease) -> bool:
        """From now on, drop the whole pages that the lease has published after all else.

        False, and nothing changed, when that would keep more than warm_share.
        """
        self._require_live(lease)
        if self._tree.warm + self._tree.cold_pages(lease.node) > self._warm_limit:
            return False
        self._tree.keep_warm(lease.node)
        self._check()
        return True

    def flush(self) -> int:
        """Drop everything that no lease and no copy holds; returns the tokens dropped.

        The warm goes too.
        """
        self.retention.clear()
        dropped = self._tree.flush()
        self._check()
        return dropped

    # What it says of itself

    def explain(self, namespace: str, key: bytes, limit: int | None = None) -> CacheReport:
        """What acquire would find now, and why it would find no more. Changes nothing."""
        if not self._is_enabled:
            return CacheReport(matched=0, reason="off")
        root = self._tree.roots.get(namespace) or Node(namespace, b"", b"", None)
        return explain(self._tree, root, key, self._cap(key, limit))

    def stats(self) -> CacheStats:
        size, tree = self.page_size, self._tree
        return CacheStats(
            page_size=size,
            total=self.total_pages * size,
            free=self.free_pages * size,
            evictable=self.evictable_pages * size,
            locked=self.locked_pages * size,
            leased=self.leased_pages * size,
            warm=tree.warm * size,
            warm_limit=self._warm_limit * size,
            namespaces=len(tree.roots),
            nodes=tree.nodes,
            remembered=len(tree.lost),
            evicted=tree.evicted_tokens,
        )

    def listing(self, namespace: str | None, depth: int, limit: int) -> list[TreeNode]:
        """The tree from above: at most `limit` nodes, see explain.listing."""
        return listing(self._tree, namespace, depth, limit)

    # Counts, in pages: free + in the tree (locked or evictable) + leased only = total

    @property
    def total_pages(self) -> int:
        return self._allocator.total

    @property
    def free_pages(self) -> int:
        return self._allocator.free

    @property
    def locked_pages(self) -> int:
        return self._tree.locked

    @property
    def evictable_pages(self) -> int:
        return self._tree.pages - self._tree.locked

    @property
    def available_pages(self) -> int:
        """What the next acquire or grow could get: free and evictable."""
        return self._allocator.free + self._tree.pages - self._tree.locked

    @property
    def leased_pages(self) -> int:
        return self._allocator.total - self._allocator.free - self._tree.pages

    @property
    def evicted_tokens(self) -> int:
        """Cached tokens dropped to make room, since the start."""
        return self._tree.evicted_tokens

    def audit(self) -> None:
        """Check every invariant; raises AssertionError naming the one that is broken."""
        audit(self._tree, self._leases, self._sources)

    def _take(self, n: int) -> bytes:
        """n pages, evicting where needed."""
        short = n - self._allocator.free
        if short <= 0:
            return self._allocator.take(n)
        self.retention.refresh()
        return self._allocator.take(n - short) + self._tree.evict(short)

    def _cap(self, key: bytes, limit: int | None) -> int:
        n = len(key)
        if n == 0 or n % 4:
            raise ValueError(f"a key is the bytes of one or more int32 ids, not {n} bytes")
        if limit is None:
            return n // 4 - 1 if self._is_enabled else 0
        if limit < 0:
            raise ValueError(f"limit must not be negative, not {limit}")
        return min(n // 4 - 1, limit) if self._is_enabled else 0

    def _require_live(self, lease: Lease) -> None:
        if lease.is_released:
            raise RuntimeError("the lease has been released")

    def _check(self) -> None:
        if self._is_audited:
            self.audit()
