"""Where each value of a JSON text stands.

Owns: JSON pointers and the bytes that spell what they point at. Must not know: schemas, tokens.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

MAX_PLACES = 4096

_BLANKS = re.compile(rb"[ \t\r\n]*")
_SCALAR = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\s,\]}]+', re.DOTALL)
_NUMBER = frozenset(b"-0123456789")


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes [start, end) spell the value at `pointer`."""

    pointer: str
    start: int
    end: int
    is_leaf: bool
    is_number: bool


def places(text: bytes) -> list[Place]:
    """Every value of a JSON text, parents first. Raises ValueError for what is no JSON, and where
    there are more than MAX_PLACES."""
    json.loads(text)
    found: list[Place | None] = []
    at = _skip(text, 0)
    open_values: list[_Open] = []
    while True:
        pointer = open_values[-1].next_pointer() if open_values else ""
        first = text[at]
        if first in b"{[":
            open_values.append(_Open(pointer, at, len(found), is_object=first == 0x7B))
            found.append(None)
            at = _skip(text, at + 1)
        else:
            match = _SCALAR.match(text, at)
            assert match is not None
            found.append(Place(pointer, at, match.end(), True, first in _NUMBER))
            at = _skip(text, match.end())
        if len(found) > MAX_PLACES:
            raise ValueError(f"more than {MAX_PLACES} values")
        at = _close(text, at, open_values, found)
        if not open_values:
            return [place for place in found if place is not None]
        at = open_values[-1].enter(text, at)


class _Open:
    """An object or array whose values are being read."""

    def __init__(self, pointer: str, start: int, index: int, *, is_object: bool) -> None:
        self.pointer = pointer
        self.start = start
        self.index = index
        self._is_object = is_object
        self._count = 0
        self._key = ""

    def enter(self, text: bytes, at: int) -> int:
        """Past the comma and the key of the next value."""
        if text[at] == 0x2C:
            at = _skip(text, at + 1)
        if self._is_object:
            match = _SCALAR.match(text, at)
            assert match is not None
            key: Any = json.loads(match[0])
            self._key = key
            at = _skip(text, _skip(text, match.end()) + 1)
        return at

    def next_pointer(self) -> str:
        name = self._key if self._is_object else str(self._count)
        self._count += 1
        return f"{self.pointer}/{name.replace('~', '~0').replace('/', '~1')}"


def _close(text: bytes, at: int, open_values: list[_Open], found: list[Place | None]) -> int:
    """Past the ends of all values that end here."""
    while open_values and text[at] in b"}]":
        over = open_values.pop()
        found[over.index] = Place(over.pointer, over.start, at + 1, False, False)
        at = _skip(text, at + 1)
    return at


def _skip(text: bytes, at: int) -> int:
    match = _BLANKS.match(text, at)
    assert match is not None
    return match.end()
