"""What stands behind the ? of a response's paths.

Owns: the parameters of retrieving a response and of listing its items, pages of a list. Must not
know: what an item is, HTTP.
"""

from __future__ import annotations

from starlette.datastructures import QueryParams

from radixserve.api.responses.items import Item
from radixserve.api.responses.schema import INCLUDED
from radixserve.errors import InvalidRequest

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
_INCLUDE = ("include", "include[]")


def check_retrieval(query: QueryParams) -> None:
    """Raise InvalidRequest for what retrieving a response cannot do. include: what could be added
    is there as the response was asked for, or nowhere."""
    _known(query, (*_INCLUDE, "stream", "include_obfuscation", "starting_after"))
    for name in ("stream", "include_obfuscation"):
        if query.get(name, "false") != "false":
            raise _refused(name)
    if "starting_after" in query:
        raise _refused("starting_after")


def page_of(items: list[Item], query: QueryParams) -> Item:
    """A page of `items`, the last first unless order=asc. Raises InvalidRequest."""
    _known(query, (*_INCLUDE, "after", "limit", "order"))
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order is asc or desc, not {order!a:.60}", param="order")
    ordered = items if order == "asc" else items[::-1]
    limit, start = _limit(query), _start(ordered, query)
    page = ordered[start : start + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + limit < len(ordered),
    }


def _limit(query: QueryParams) -> int:
    given = query.get("limit", str(DEFAULT_LIMIT))
    if not (
        given.isascii() and given.isdigit() and len(given) < 9 and 1 <= int(given) <= MAX_LIMIT
    ):
        raise InvalidRequest(f"limit is a whole number from 1 to {MAX_LIMIT}", param="limit")
    return int(given)


def _start(items: list[Item], query: QueryParams) -> int:
    after = query.get("after")
    if after is None:
        return 0
    for i, item in enumerate(items):
        if item["id"] == after:
            return i + 1
    raise InvalidRequest(f"after: there is no item {after!a:.80}", param="after")


def _known(query: QueryParams, names: tuple[str, ...]) -> None:
    for name, value in query.multi_items():
        if name not in names:
            raise InvalidRequest(
                f"unknown parameter {name!a:.80}", param=name, code="unknown_parameter"
            )
        if name in _INCLUDE and value not in INCLUDED:
            raise InvalidRequest(
                f"include is among {', '.join(sorted(INCLUDED))}, not {value!a:.80}",
                param="include",
            )


def _refused(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} is not supported: a stream is read as it is made, by who asked for it",
        param=name,
        code="unsupported_parameter",
    )
