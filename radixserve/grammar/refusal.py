"""How a schema is refused.

Owns: the words of the 400. Must not know: what is refused where.
"""

from __future__ import annotations

from radixserve.errors import InvalidRequest

CODE = "unsupported_schema"


def refused(pointer: str, keyword: str, why: str) -> InvalidRequest:
    """The error for `keyword` at `pointer` (a JSON pointer; "" is the root)."""
    place = f"#{pointer}/{keyword}" if keyword else f"#{pointer}"
    return InvalidRequest(f"{keyword or 'schema'} at {place}: {why}", code=CODE)
