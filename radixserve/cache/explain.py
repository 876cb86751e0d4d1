"""Why the match of a prompt ended where it did, and what the cache holds.

Owns: CacheReport and the listing of the tree. Changes nothing. Must not know: requests, text.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from radixserve.cache.match import Match, common_tokens
from radixserve.cache.node import Node
from radixserve.cache.tree import RadixTree
from radixserve.wire.cache import CacheReport, TreeNode

SHOWN_IDS = 16  # of each edge in a listing
LOOKED_AT = 5_000  # children of one node among which the latest used are looked for


def explain(tree: RadixTree, root: Node, key: bytes, cap: int) -> CacheReport:
    """What an acquire of `key` with at most `cap` tokens to match would find now, and why no more.

    Costs as much as hashing the key's pages.
    """
    found = tree.match(root, key, 0, cap)
    _, _, depth, _, extra = found
    whole = depth * tree.stride
    matched = whole // 4 + extra
    if matched == cap:
        return CacheReport(matched=matched, reason="whole" if cap == len(key) // 4 - 1 else "limit")
    common, other = _beside(found, key[whole : min(whole + tree.stride, cap * 4)], tree.stride)
    if whole // 4 + common > matched:
        return CacheReport(matched=matched, reason="pending")
    lost = tree.lost.find(root.namespace, key, matched * 4)
    if lost is None:
        return CacheReport(matched=matched, reason="never", other=other)
    return CacheReport(
        matched=matched, reason=lost.cause, other=other, lost=min(lost.tokens, cap) - matched
    )


def _beside(found: Match, probe: bytes, stride: int) -> tuple[int, int | None]:
    """(tokens of the probe, id after them) of the page that begins most like the probe behind the
    matched whole pages. The id is None where no page goes on from there."""
    node, inside, _, _, _ = found
    if 4 * inside < len(node.pages):
        near = [node.key[inside * stride : (inside + 1) * stride]]
    else:
        near = [child.key[:stride] for child in _near(node, probe)]
    common = max((common_tokens(page, probe) for page in near), default=0)
    for page in near:
        following = page[4 * common : 4 * common + 4]
        if following and common_tokens(page, probe) == common:
            return common, int.from_bytes(following, "little")
    return common, None


def _near(node: Node, probe: bytes) -> list[Node]:
    """The children between which the probe stands, or else some child."""
    alike, at = node.alike(probe, 1)
    if alike:
        return alike[max(at - 1, 0) : at + 1]
    return node.all_children()[:1]


def listing(tree: RadixTree, namespace: str | None, depth: int, limit: int) -> list[TreeNode]:
    """The tree from above, at most `limit` nodes, roots included, each behind its parent.

    namespace: only that one; None: all. depth: edges below a root. Level by level, of each node's
    children the latest used first.
    """
    roots = [root for name, root in tree.roots.items() if namespace in (None, name)]
    level: list[tuple[int | None, Node]] = [(None, root) for root in _latest(roots, limit)]
    room = limit - len(level)
    rows: list[TreeNode] = []
    for left in range(depth, -1, -1):
        below: list[tuple[int | None, Node]] = []
        for parent, node in level:
            every = node.all_children()
            children = _latest(every, room) if left else []
            room -= len(children)
            below += [(len(rows), child) for child in children]
            rows.append(_told(node, parent, len(every) - len(children)))
        level = below
    return rows


def _latest(nodes: Iterable[Node], n: int) -> list[Node]:
    among = sorted(itertools.islice(nodes, LOOKED_AT), key=lambda node: node.time, reverse=True)
    return among[:n]


def _told(node: Node, parent: int | None, left_out: int) -> TreeNode:
    return TreeNode(
        parent=parent,
        namespace=node.namespace if parent is None else "",
        tokens=node.tokens,
        ids=list(memoryview(node.key[: 4 * SHOWN_IDS]).cast("i")),
        users=node.lock + (0 if node.pin is None else node.pin.count),
        used=node.time,
        is_warm=node.is_warm,
        left_out=left_out,
    )
