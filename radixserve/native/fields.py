"""Reading a request's fields strictly, with errors that name the field.

Owns: turning a plain dictionary into a struct, refusing what is not implemented unless it asks
for nothing. Must not know: any one dialect, HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from radixserve.errors import InvalidRequest

T = TypeVar("T")
Refusals = Mapping[str, tuple[Any, ...]]

_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`")
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`")
_INT64 = 2**63


def read(kind: type[T], body: object, *, refused: Refusals | None = None, at: str = "") -> T:
    """`body` as a `kind`. null means absent; a whole float may stand for an integer.

    refused: names that are known and not implemented, with their values that ask for nothing;
    those are dropped, others raise. at: where `body` itself stands, before the names in errors.
    Raises InvalidRequest with the path of the field, like `messages[1].role`.
    """
    if not isinstance(body, dict):
        what = at or "the request body"
        raise InvalidRequest(f"{what} must be an object, not {_word(body)}", param=at or None)
    given: dict[str, Any] = {}
    for name, value in body.items():
        if value is None or _dropped(name, value, refused or {}, at):
            continue
        given[name] = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(given[name], int) and not -_INT64 <= given[name] < _INT64:
            raise InvalidRequest(f"{name} does not fit 64 bits", param=_join(at, name))
    try:
        return msgspec.convert(given, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _named(str(error), at) from None


def _dropped(name: str, value: object, refused: Refusals, at: str) -> bool:
    if name not in refused:
        return False
    # True == 1, so the kinds must agree as well.
    if any(type(value) is type(neutral) and value == neutral for neutral in refused[name]):
        return True
    raise InvalidRequest(
        f"{name} is not supported yet", param=_join(at, name), code="unsupported_parameter"
    )


def _named(message: str, at: str) -> InvalidRequest:
    place = _PLACE.search(message)
    path = place["path"] if place else ""
    where = _join(at, path)
    text = message[: place.start()] if place else message
    if unknown := _UNKNOWN.match(text):
        name = _join(where, unknown["name"])
        return InvalidRequest(f"unknown field {name}", param=name, code="unknown_parameter")
    if missing := _MISSING.match(text):
        name = _join(where, missing["name"])
        return InvalidRequest(f"missing field {name}", param=name, code="missing_parameter")
    return InvalidRequest(f"{where or 'body'}: {text.replace('`', '')}", param=where or None)


def _join(at: str, path: str) -> str:
    if not at or not path or path.startswith("["):
        return at + path
    return f"{at}.{path}"


def _word(value: object) -> str:
    match value:
        case None:
            return "null"
        case list():
            return "a list"
        case str():
            return "a string"
        case _:
            return f"a {type(value).__name__}"
