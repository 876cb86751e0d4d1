"""How a schema is refused.

Owns: the words of the 400. Must not know: what is refused where.
"""

from __future__ import annotations

from radixserve.errors import InvalidRequest

CODE = "unsupported_schema"


class Unsupported(InvalidRequest):
    """A keyword that cannot be enforced. pointer: JSON pointer of the schema that holds it, "" the
    root; keyword: "" where that itself is at fault, which is then called `what`."""

    code = CODE

    def __init__(self, pointer: str, keyword: str, why: str, what: str = "schema") -> None:
        place = f"#{pointer}/{keyword}" if keyword else f"#{pointer}"
        super().__init__(f"{keyword or what} at {place}: {why}")
        self.pointer = pointer
        self.keyword = keyword
        self.why = why


def refused(pointer: str, keyword: str, why: str) -> Unsupported:
    """The error for `keyword` at `pointer` (a JSON pointer; "" is the root)."""
    return Unsupported(pointer, keyword, why)
