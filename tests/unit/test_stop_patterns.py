"""Patterns that end an output, against re, in pieces that cut characters."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.errors import InvalidRequest
from radixserve.native.stops import stop_patterns
from radixserve.scheduler.finish import FinishCheck
from radixserve.scheduler.patterns import PatternWatch
from radixserve.wire import codec
from radixserve.wire.messages import Generate
from radixserve.wire.params import SamplingParams

PATTERNS = ["a+b", "ab|ba", "(a|é)b?🦙", "^ab", "b$", "a.b", "[^a]{3}", "^$|aaa$"]
texts = st.text("abé🦙\n", max_size=12)


@pytest.mark.parametrize("pattern", [p for p in PATTERNS if not re.search(p, "")])
@given(text=texts, data=st.data())
def test_the_first_match_ends_it(pattern, text, data) -> None:
    wanted = next((n for n in range(1, len(text) + 1) if re.search(pattern, text[:n])), None)
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    watch = PatternWatch(stop_patterns(pattern, "stop_regex"))
    seen = 0
    for start, end in zip([0, *cuts], [*cuts, len(raw)]):
        matched = watch.feed(raw[start:end])
        complete = len(raw[:end].decode("utf-8", "ignore"))
        if wanted is not None and seen < wanted <= complete:
            assert matched == pattern
            return
        assert matched is None
        seen = complete
    assert wanted is None


def check_of(pattern, **params) -> FinishCheck:
    params = SamplingParams(stop_regex=stop_patterns(pattern, "stop_regex"), **params)
    message = Generate(rid="a", prompt=b"\0" * 4, params=params)
    (sent,) = codec.decode_to_engine(codec.encode([message]))
    table = [b"", *(bytes([code]) for code in range(97, 123))]
    return FinishCheck(sent.params, (), table)


def pushed(check: FinishCheck, text: str):
    endings = [check.push(ord(char) - 96 if char != "_" else 0) for char in text]
    return [(i, e.matched, e.kept_bytes) for i, e in enumerate(endings) if e is not None]


def test_an_output_ends_behind_the_token() -> None:
    assert pushed(check_of("b+c"), "aab_bca")[0] == (5, "b+c", None)
    assert pushed(check_of(["x", "c", ""]), "abc")[0] == (2, "c", None)
    assert pushed(check_of("c", stop=("bc",)), "abc")[0] == (2, "bc", 1)


def test_the_first_tokens_are_not_looked_at() -> None:
    assert pushed(check_of("ab", min_new_tokens=2), "abab")[0][0] == 3
    assert pushed(check_of("ab", min_new_tokens=1), "abba") == []


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "stop_regex"),
        ("a*", "the empty text"),
        ("a{9999}", "stop_regex"),
        ("(?=a)b", "stop_regex"),
        ("x" * 1025, "longer"),
        ("(a|b)*a(a|b){14}", "stop_regex"),
        ([f"(a|b){{3}}c(a{{1,60}}){{1,60}}{i}" for i in range(16)], "200000 steps"),
        (["a"] * 17, "17 entries"),
    ],
)
def test_what_cannot_be_watched_is_refused(pattern, why) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        stop_patterns(pattern, "stop_regex")
    assert refused.value.param == "stop_regex"
