"""What the cache says of itself, as it travels from the engine to the front.

Owns: these shapes. Must not know: how the cache finds them out, how they are shown.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MissReason = Literal["whole", "limit", "off", "no_room", "pending", "evicted", "flushed", "never"]


class CacheReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the match of one prompt ended when the request was admitted, and why there.

    matched: tokens that were found. other: the id that the cache has at that place instead of the
    prompt's, in the same namespace; None where it has nothing that goes on from there.
    lost: tokens behind the match that the cache has had and dropped; known to the page (and to the
    end of what was published), as far as the cache remembers.
    reason: whole - all that can match did, the last token is always computed; limit - the request
    asks for something that needs the rest computed; off - there is no prefix cache; no_room - no
    page was free to copy the beginning of a page into; pending - it is being computed by another
    request of the same step; evicted, flushed - it had been there; never - as far as the cache
    remembers it never was.
    """

    matched: int
    reason: MissReason
    other: int | None = None
    lost: int = 0


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """The cache as a whole, in tokens (pages x page_size) where not said otherwise.

    total = free + evictable + locked + leased: in nobody's hands, in the tree and droppable, in the
    tree and in use, of one request only. warm: of what is in the tree, kept first. warm_limit: how
    much may be. namespaces, nodes: counted. remembered: dropped pages that an explanation can still
    name. evicted: tokens dropped to make room, ever.
    """

    page_size: int
    total: int
    free: int
    evictable: int
    locked: int
    leased: int
    warm: int
    warm_limit: int
    namespaces: int
    nodes: int
    remembered: int
    evicted: int


class TreeNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One edge of the radix tree.

    parent: its place in the listing; None for the root of a namespace, which has no tokens.
    namespace: of a root. tokens: on the edge. ids: the first of them. users: requests and copies
    that hold it. used: the cache's clock at its last use; larger is later. left_out: children that
    the listing has no room for.
    """

    parent: int | None
    namespace: str = ""
    tokens: int = 0
    ids: list[int] = []
    users: int = 0
    used: int = 0
    is_warm: bool = False
    left_out: int = 0
