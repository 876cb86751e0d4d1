"""Sets of code points as sorted ranges.

Owns: union, intersection, complement, and the Unicode side of \\d, \\w and \\s. Must not know:
regexes, JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

Ranges = tuple[tuple[int, int], ...]  # inclusive, sorted, disjoint, never adjacent

# Surrogates are no characters: no text that reaches a client holds one.
EVERYTHING: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
DIGIT: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))


def of(*chars: str) -> Ranges:
    """of("a", "c") is the set of the two; of("az") the range from a to z."""
    return union((ord(part[0]), ord(part[-1])) for part in chars)


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def intersect(left: Ranges, right: Ranges) -> Ranges:
    found = []
    i = j = 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if low <= high:
            found.append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def complement(ranges: Ranges) -> Ranges:
    """Every character that is not in `ranges`."""
    gaps = []
    at = 0
    for low, high in ranges:
        if low > at:
            gaps.append((at, low - 1))
        at = high + 1
    if at <= 0x10FFFF:
        gaps.append((at, 0x10FFFF))
    return intersect(tuple(gaps), EVERYTHING)


def _where(test: Iterable[int]) -> Ranges:
    return union((code, code) for code in test)


@cache
def unicode_digit() -> Ranges:
    """What any reader of \\d could mean: decimal digits of every script."""
    return _where(code for code in range(0x110000) if chr(code).isdecimal())


@cache
def unicode_word() -> Ranges:
    """What any reader of \\w could mean: letters, digits and the underscore of every script."""
    found = _where(code for code in range(0x110000) if chr(code).isalnum())
    return union((*found, *WORD))


@cache
def unicode_space() -> Ranges:
    """What any reader of \\s could mean; browsers count U+FEFF, Python U+001C to U+001F."""
    found = _where(code for code in range(0x110000) if chr(code).isspace())
    return union((*found, (0xFEFF, 0xFEFF)))
