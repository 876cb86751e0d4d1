"""OrderedKeys against a plain sorted list, beyond the size of a block."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right

import pytest

from radixserve.cache.ordered import OrderedKeys


def test_agrees_with_a_sorted_list_while_it_grows_and_shrinks() -> None:
    rng = random.Random(0)
    ordered, plain = OrderedKeys(), []
    pool = [i.to_bytes(4, "big") for i in rng.sample(range(2**31), 3000)]
    for key in pool:
        ordered.add(key)
    plain = sorted(pool)
    assert ordered.all() == plain
    rng.shuffle(pool)
    while pool:
        for key in pool[:100]:
            ordered.remove(key)
            del plain[bisect_left(plain, key)]
        del pool[:100]
        assert ordered.all() == plain
        assert len(ordered) == len(plain)
        for probe in [*pool[:20], *(rng.randbytes(4) for _ in range(20))]:
            i, right = bisect_left(plain, probe), bisect_right(plain, probe)
            assert ordered.after(probe) == (plain[right] if right < len(plain) else None)
            for reach in (1, 4):
                near, at = ordered.around(probe, reach)
                assert near == plain[max(i - reach, 0) : i + reach]
                assert near[:at] == plain[max(i - reach, 0) : i]


def test_around_reaches_across_the_border_of_two_blocks() -> None:
    ordered = OrderedKeys()
    keys = [i.to_bytes(4, "big") for i in range(5000)]
    for key in keys:
        ordered.add(key)
    for i, key in enumerate(keys):
        near, at = ordered.around(key, 4)
        assert near == keys[max(i - 4, 0) : i + 4]
        assert near[at] == key


def test_a_key_that_is_not_there_cannot_be_removed() -> None:
    ordered = OrderedKeys()
    with pytest.raises(KeyError):
        ordered.remove(b"a")
    ordered.add(b"a")
    for missing in (b"0", b"b"):
        with pytest.raises(KeyError):
            ordered.remove(missing)
    assert ordered.all() == [b"a"]


def test_empty() -> None:
    ordered = OrderedKeys()
    assert ordered.after(b"") is None
    assert ordered.around(b"a", 4) == ([], 0)
