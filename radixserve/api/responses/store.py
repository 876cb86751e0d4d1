"""Responses that are kept, so that later ones can go on from them.

Owns: what is kept for whom, how much of it and how long, the items of a chain of responses. Must
not know: HTTP, what an item means, requests.

What is kept is JSON text under a name, and a chain is a walk over such texts, so another store with
the same verbs may be shared among several fronts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from radixserve.config.schema import HttpConfig

Item = dict[str, Any]
Owner = str  # the name of a key, "" where there are none
ITEM_COST = 256  # bytes that an item takes beside its text


@dataclass(slots=True, eq=False)
class _Link:
    """Items that one response adds to its chain. users: responses and links that need it yet."""

    earlier: _Link | None
    items: bytes
    names: tuple[str, ...]
    users: int = 0

    @property
    def size(self) -> int:
        return len(self.items) + ITEM_COST * len(self.names)


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """body: the response as JSON. given: the last link of what it was made from. made: what it
    added to that. until: when it goes, in the clock's seconds."""

    owner: Owner
    body: bytes
    given: _Link
    made: _Link
    until: float


@dataclass(slots=True)
class _Share:
    """What one owner has: responses in the order of keeping, links by the names of their items."""

    names: dict[str, None] = field(default_factory=dict)
    items: dict[str, list[_Link]] = field(default_factory=dict)
    size: int = 0


class ResponseStore:
    """Bounded in number, bytes and time. The oldest go first, of the owner who has the most; the
    items of a chain stay while a later response of it does. Verbs may be called from any thread.

    clock: seconds, never going back.
    """

    def __init__(self, http: HttpConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = http.store_responses
        self._most_bytes = http.store_mib * 2**20
        self._seconds = http.store_seconds
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._shares: dict[Owner, _Share] = {}
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Whether anything is kept at all."""
        return self._most > 0

    @property
    def size(self) -> int:
        """Bytes kept."""
        return sum(share.size for share in self._shares.values())

    def __len__(self) -> int:
        return len(self._kept)

    def keep(
        self,
        owner: Owner,
        body: Item,
        given: Sequence[Item],
        made: Sequence[Item],
        after: str | None = None,
    ) -> bool:
        """Keep the response `body`, whose `id` is its name, made from `given` behind all items of
        the response `after`; `made` is what it adds. False: it takes more room than there is, or
        `after` has gone meanwhile."""
        if not self.is_on:
            return False
        with self._lock:
            self._expire()
            before = None if after is None else self._of(owner, after)
            if after is not None and before is None:
                return False
            first = _link(None if before is None else before.made, given)
            until = self._clock() + self._seconds
            kept = _Kept(owner, msgspec.json.encode(body), first, _link(first, made), until)
            self._enter(str(body["id"]), kept)
            self._shrink()
            return body["id"] in self._kept

    def body(self, owner: Owner, name: str) -> Item | None:
        """The response of that name; None where `owner` has none."""
        kept = self._found(owner, name)
        return None if kept is None else dict(msgspec.json.decode(kept.body))

    def given(self, owner: Owner, name: str) -> list[Item] | None:
        """All items that the response of that name was made from, in their order."""
        kept = self._found(owner, name)
        return None if kept is None else _items(kept.given)

    def chain(self, owner: Owner, name: str) -> list[Item] | None:
        """The same and what it added: what a response after it begins with."""
        kept = self._found(owner, name)
        return None if kept is None else _items(kept.made)

    def chain_texts(self, owner: Owner, name: str) -> list[bytes]:
        """The lists of JSON that chain() is read from; none where there is no such response."""
        kept = self._found(owner, name)
        return [] if kept is None else [link.items for link in _back(kept.made)]

    def find(self, owner: Owner, name: str) -> Item | None:
        """The item whose `id` is `name`, the newest where several have it."""
        with self._lock:
            self._expire()
            share = self._shares.get(owner)
            links = [] if share is None else share.items.get(name, [])
            link = links[-1] if links else None
        if link is None:
            return None
        return next(dict(item) for item in _decoded(link) if item["id"] == name)

    def drop(self, owner: Owner, name: str) -> bool:
        """Whether there was such a response; it is gone now."""
        with self._lock:
            self._expire()
            if self._of(owner, name) is None:
                return False
            self._leave(name)
            return True

    def _found(self, owner: Owner, name: str) -> _Kept | None:
        with self._lock:
            self._expire()
            return self._of(owner, name)

    # ---- under the lock ----

    def _of(self, owner: Owner, name: str) -> _Kept | None:
        kept = self._kept.get(name)
        return kept if kept is not None and kept.owner == owner else None

    def _enter(self, name: str, kept: _Kept) -> None:
        share = self._shares.setdefault(kept.owner, _Share())
        share.names[name] = None
        share.size += len(kept.body)
        for link in (kept.given, kept.made):
            link.users += 1
            share.size += link.size
            if link.earlier is not None:
                link.earlier.users += 1
            for item in link.names:
                share.items.setdefault(item, []).append(link)
        self._kept[name] = kept

    def _leave(self, name: str) -> None:
        kept = self._kept.pop(name)
        share = self._shares[kept.owner]
        del share.names[name]
        share.size -= len(kept.body)
        for link in (kept.made, kept.given):
            for each in _let_go(link):
                share.size -= each.size
                _forget(share, each)
        if not share.names:
            assert share.size == 0
            del self._shares[kept.owner]

    def _expire(self) -> None:
        now = self._clock()
        while self._kept:
            oldest = next(iter(self._kept))
            if self._kept[oldest].until > now:
                return
            self._leave(oldest)

    def _shrink(self) -> None:
        while len(self._kept) > self._most:
            self._leave_oldest_of(max(self._shares.values(), key=lambda share: len(share.names)))
        while self.size > self._most_bytes:
            self._leave_oldest_of(max(self._shares.values(), key=lambda share: share.size))

    def _leave_oldest_of(self, share: _Share) -> None:
        self._leave(next(iter(share.names)))


def _link(earlier: _Link | None, items: Sequence[Item]) -> _Link:
    encoded = msgspec.json.encode(list(items))
    return _Link(earlier, encoded, tuple(str(item["id"]) for item in items))


def _decoded(link: _Link) -> list[Item]:
    return list(msgspec.json.decode(link.items))


def _items(last: _Link) -> list[Item]:
    return [item for link in reversed([*_back(last)]) for item in _decoded(link)]


def _back(link: _Link | None) -> Iterator[_Link]:
    while link is not None:
        yield link
        link = link.earlier


def _let_go(link: _Link) -> list[_Link]:
    """One user fewer. Returns the links that nobody needs any more."""
    unneeded = []
    for each in _back(link):
        each.users -= 1
        if each.users:
            break
        unneeded.append(each)
    return unneeded


def _forget(share: _Share, link: _Link) -> None:
    for item in link.names:
        links = share.items[item]
        links.remove(link)
        if not links:
            del share.items[item]
