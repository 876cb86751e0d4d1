"""The input file, line by line.

Owns: reading in bounded memory, what one line is called. Must not know: what a line asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from radixserve.api.body import parse
from radixserve.errors import InvalidRequest

_MARK = b"\xef\xbb\xbf"  # some editors begin a file with it

Name = str | int


@dataclass(frozen=True, slots=True)
class Line:
    """number: from 1, blank lines counted. raw: its bytes, None where they pass the limit. end:
    bytes of the file up to here."""

    number: int
    raw: bytes | None
    end: int

    def value(self, limit: int) -> dict[str, Any]:
        """The object that stands here. Raises InvalidRequest."""
        if self.raw is None:
            raise InvalidRequest(f"the line is longer than {limit} bytes", code="line_too_long")
        found = parse(self.raw)
        if not isinstance(found, dict):
            raise InvalidRequest("a line holds one JSON object", code="invalid_json")
        return found

    def names(self, limit: int) -> dict[str, Name]:
        """See names_of; a line that cannot be read goes by its number."""
        try:
            return names_of(self.value(limit), self.number)
        except InvalidRequest:
            return {"line": self.number}


def names_of(value: dict[str, Any], number: int) -> dict[str, Name]:
    """What the answer to a line begins with: its own name, or its number."""
    key = "custom_id" if is_openai_line(value) else "id"
    given = value.get(key)
    if isinstance(given, str | int) and not isinstance(given, bool):
        return {key: given}
    return {"line": number}


def is_openai_line(value: dict[str, Any]) -> bool:
    """It has the shape of OpenAI's batches, well or badly."""
    return "body" in value and bool({"custom_id", "url", "method"} & value.keys())


def read_lines(file: BinaryIO, limit: int) -> Iterator[Line]:
    """The lines that are not blank; of one longer than `limit` bytes, that it is there."""
    number = end = 0
    while raw := file.readline(limit + 1):
        number += 1
        end += len(raw)
        whole = len(raw) <= limit or raw.endswith(b"\n")
        while not raw.endswith(b"\n") and (more := file.readline(limit + 1)):
            end += len(more)
            raw = more
        text = raw.removeprefix(_MARK) if number == 1 else raw
        if not whole:
            yield Line(number, None, end)
        elif text.strip():
            yield Line(number, text.strip(), end)
