"""The store of responses against a plain list: what is kept, for whom, how long, in what room."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from radixserve.api.responses.store import ITEM_COST, ResponseStore
from radixserve.config.schema import HttpConfig

OWNERS = ["", "a", "b"]
SECONDS = 10.0


def items(prefix: str, count: int, size: int = 3) -> list[dict]:
    return [{"id": f"{prefix}{i}", "text": "x" * size} for i in range(count)]


def store_of(most=100, mib=64, seconds=SECONDS, clock=lambda: 0.0) -> ResponseStore:
    http = HttpConfig(store_responses=most, store_mib=mib, store_seconds=seconds)
    return ResponseStore(http, clock)


class Kept:
    def __init__(self, owner, body, given, chain, until):
        self.owner, self.body, self.given, self.chain, self.until = owner, body, given, chain, until


class StoreMachine(RuleBasedStateMachine):
    """One clock, three owners; the number of responses is the limit that bites."""

    @initialize(most=st.integers(1, 6))
    def begin(self, most: int) -> None:
        self.now = 0.0
        self.most = most
        self.store = store_of(most, clock=lambda: self.now)
        self.kept: dict[str, Kept] = {}
        self.made = 0

    def expire(self) -> None:
        self.kept = {name: k for name, k in self.kept.items() if k.until > self.now}

    @rule(
        owner=st.sampled_from(OWNERS),
        given=st.integers(0, 2),
        made=st.integers(0, 2),
        pick=st.none() | st.integers(0, 5),
    )
    def keep(self, owner, given, made, pick) -> None:
        self.expire()
        self.made += 1
        name = f"resp_{self.made}"
        after = None if pick is None or not self.kept else list(self.kept)[pick % len(self.kept)]
        body = {"id": name, "n": self.made}
        mine, new = items(f"{name}g", given), items(f"{name}m", made)
        could = self.store.keep(owner, body, mine, new, after)
        if after is not None and self.kept[after].owner != owner:
            assert not could
            return
        assert could
        before = self.kept[after].chain if after is not None else []
        until = self.now + SECONDS
        self.kept[name] = Kept(owner, body, before + mine, before + mine + new, until)
        if len(self.kept) > self.most:
            counts = {o: sum(k.owner == o for k in self.kept.values()) for o in OWNERS}
            oldest = {}
            for each, k in self.kept.items():
                oldest.setdefault(k.owner, each)
            gone = [
                n for n in list(oldest.values()) if self.store.body(self.kept[n].owner, n) is None
            ]
            assert len(gone) == 1, "one went, the oldest of its owner"
            assert counts[self.kept[gone[0]].owner] == max(counts.values())
            del self.kept[gone[0]]

    @rule(pick=st.integers(0, 5), owner=st.sampled_from(OWNERS))
    def drop(self, pick, owner) -> None:
        self.expire()
        if not self.kept:
            return
        name = list(self.kept)[pick % len(self.kept)]
        is_own = self.kept[name].owner == owner
        assert self.store.drop(owner, name) == is_own
        if is_own:
            del self.kept[name]
            assert not self.store.drop(owner, name)

    @rule(seconds=st.sampled_from([1.0, 4.0, SECONDS]))
    def wait(self, seconds) -> None:
        self.now += seconds

    @invariant()
    def holds_what_it_should(self) -> None:
        if not hasattr(self, "store"):
            return
        self.expire()
        assert len(self.kept) <= self.most
        for owner in OWNERS:
            reachable: dict[str, dict] = {}
            for name, k in self.kept.items():
                is_own = k.owner == owner
                assert self.store.body(owner, name) == (k.body if is_own else None)
                assert self.store.given(owner, name) == (k.given if is_own else None)
                assert self.store.chain(owner, name) == (k.chain if is_own else None)
                for item in k.chain:
                    found = self.store.find(owner, item["id"])
                    if is_own:
                        reachable[item["id"]] = item
                        assert found == item
            for n in range(self.made + 1):
                for kind in "gm":
                    for i in range(2):
                        name = f"resp_{n}{kind}{i}"
                        assert self.store.find(owner, name) == reachable.get(name)
        assert len(self.store) == len(self.kept)
        if not self.kept:
            assert self.store.size == 0

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.expire()
            for name, k in list(self.kept.items()):
                assert self.store.drop(k.owner, name)
            assert self.store.size == 0
            assert len(self.store) == 0


TestStore = StoreMachine.TestCase
TestStore.settings = settings(stateful_step_count=25)


def test_bytes_are_bounded_and_the_owner_of_most_gives_way() -> None:
    store = store_of(mib=1)
    assert store.keep("small", {"id": "s"}, items("s", 1), [])
    for n in range(40):
        assert store.keep("big", {"id": f"b{n}"}, items(f"b{n}_", 1, size=100_000), [])
        assert store.size <= 2**20
    assert store.body("small", "s") is not None
    assert store.body("big", "b39") is not None
    assert store.body("big", "b0") is None
    assert len(store) == 11


def test_size_is_that_of_the_texts() -> None:
    store = store_of()
    given, made = items("g", 2), items("m", 1)
    assert store.keep("", {"id": "r"}, given, made)
    texts = [{"id": "r"}, given, made]
    assert store.size == sum(len(msgspec.json.encode(t)) for t in texts) + 3 * ITEM_COST
    assert store.keep("", {"id": "r2"}, [], [], after="r")
    assert store.drop("", "r")
    assert store.chain("", "r2") == given + made, "a later response keeps what it was made from"
    assert store.find("", "g0") == given[0]
    assert store.drop("", "r2")
    assert store.find("", "g0") is None
    assert store.size == 0


def test_what_never_fits_is_not_kept_and_drives_out_no_smaller_owner() -> None:
    store = store_of(mib=1)
    assert store.keep("small", {"id": "s"}, [], [])
    assert not store.keep("big", {"id": "b"}, items("b", 1, size=2**20), [])
    assert store.body("small", "s") == {"id": "s"}
    assert store.body("big", "b") is None


def test_a_chain_whose_beginning_has_gone_does_not_go_on() -> None:
    now = [0.0]
    store = store_of(clock=lambda: now[0])
    assert store.keep("", {"id": "a"}, items("a", 1), [])
    now[0] = SECONDS / 2
    assert store.keep("", {"id": "b"}, items("b", 1), [], after="a")
    now[0] = SECONDS
    assert not store.keep("", {"id": "c"}, [], [], after="a")
    assert store.keep("", {"id": "c"}, [], [], after="b")
    assert store.chain("", "c") == items("a", 1) + items("b", 1)


def test_a_store_that_is_off_keeps_nothing() -> None:
    store = store_of(0)
    assert not store.is_on
    assert not store.keep("", {"id": "a"}, [], [])
    assert store.size == 0
