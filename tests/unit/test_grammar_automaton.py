"""Regular expressions and automata, against Python's re."""

from __future__ import annotations

import random
import re

import pytest

from radixserve.grammar import automaton, charset, regex

PATTERNS = [
    "^[A-F]+$",
    "a|b$",
    "^a",
    "(ab)*c{2,3}",
    "^$",
    "",
    "a$|^b",
    "x(^a)?",
    "[^a]b",
    r"\d{2}|\s",
    "^(a|ab)(c|bcd)$",
    "$a",
    "(a$|b)+",
    "^(a{1,3}){1,3}$",
    r"(?:a|(?P<n>b))+?c",
    r"^[\w-]{2,}$",
]


def texts(count: int) -> list[str]:
    rng = random.Random(5)
    return [
        "".join(rng.choice("abcdAF1x\n -") for _ in range(rng.randrange(7))) for _ in range(count)
    ]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_agrees_with_re(pattern):
    strict = pattern.replace("$", r"\Z")  # what $ means everywhere but in Python
    found = automaton.from_regex(pattern, search=True)
    wide = automaton.from_regex(pattern, search=True, narrow=False)
    whole = automaton.from_regex(pattern, search=False)
    other = automaton.complement(found)
    for text in texts(600):
        expected = bool(re.search(strict, text, re.ASCII))
        assert found.accepts(text) == expected, text
        assert other.accepts(text) != expected, text
        assert wide.accepts(text) >= bool(re.search(pattern, text)), text
        assert whole.accepts(text) == bool(re.fullmatch(strict, text, re.ASCII)), text


def test_products_and_lengths():
    one = automaton.from_regex("^[ab]*$", search=True)
    two = automaton.from_regex("ab", search=True)
    both = automaton.bounded(automaton.intersect(one, two), 3, 4)
    for text in texts(400):
        expected = re.fullmatch("[ab]{3,4}", text) is not None and "ab" in text
        assert both.accepts(text) == expected, text
    assert automaton.lengths(both) == (3, 4)
    assert automaton.lengths(two) == (2, None)
    assert automaton.intersect(automaton.from_texts(["x", "yy"]), two).is_empty


def test_readers_that_disagree():
    narrow = automaton.from_regex(r"^\d\W\S$", search=True)
    wide = automaton.from_regex(r"^\d\W\S$", search=True, narrow=False)
    assert narrow.accepts("1-é")
    assert not narrow.accepts("٣-x")  # a digit for Python, not for browsers
    assert wide.accepts("٣-x")
    assert not narrow.accepts("1éx")
    assert wide.accepts("1éx")


def test_classes_are_code_points():
    ranges = charset.union([(0x61, 0x63), (0x64, 0x66), (0x70, 0x70)])
    assert ranges == ((0x61, 0x66), (0x70, 0x70))
    assert charset.intersect(ranges, charset.complement(charset.of("bc"))) == (
        (0x61, 0x61),
        (0x64, 0x66),
        (0x70, 0x70),
    )
    assert charset.complement(charset.EVERYTHING) == ()
    assert automaton.from_regex("^[🚀-🚂]$", search=True).accepts("🚁")


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "[",
        "[]",
        "a**",
        "*",
        "a{2,1}",
        "a{9999}",
        r"\q",
        r"\ud800",
        "a++",
        "(?>a)",
        "{",
        "^*",
    ],
)
def test_what_cannot_be_read(pattern):
    with pytest.raises(regex.RegexError, match="offset"):
        regex.parse(pattern)


def test_escapes():
    found = automaton.from_regex(r"\x41\u0042\u{1F680}\cA\.\-[\b\]\\]", search=False)
    assert found.accepts("AB🚀\x01.-\b")
    assert found.accepts("AB🚀\x01.-]")
    assert not found.accepts("AB🚀\x01x-]")
