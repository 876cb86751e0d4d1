"""Makes a schema that cannot be enforced into a weaker one that can.

Owns: what may be left out of a schema so that it allows more, never less. Must not know: what can
be enforced and why (check says), validators, HTTP.

Keywords are left out where check() refuses them, one after another. Some do not stand alone:
`properties` says what `additionalProperties` means, so they go together. Inside `not`, `if` and
`contains` leaving something out would allow less, so those go whole; `oneOf` turns into `anyOf`
first.
"""

from __future__ import annotations

import copy
import json
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from radixserve.grammar.check import check
from radixserve.grammar.document import HOLDERS
from radixserve.grammar.refusal import Unsupported
from radixserve.wire.params import Constraint

MAX_TRIES = 64
SECONDS = 3.0

_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_WITH: dict[str, tuple[str, ...]] = {
    "properties": ("additionalProperties", "unevaluatedProperties"),
    "patternProperties": ("additionalProperties", "unevaluatedProperties"),
    "additionalProperties": ("unevaluatedProperties",),
    "prefixItems": ("items", "unevaluatedItems"),
    "items": ("additionalItems", "unevaluatedItems"),
    "contains": ("minContains", "maxContains", "unevaluatedItems"),
    "minContains": ("contains", "maxContains", "unevaluatedItems"),
    "if": ("then", "else", *_UNEVALUATED),
    "minimum": ("exclusiveMinimum",),
    "maximum": ("exclusiveMaximum",),
    **dict.fromkeys(
        ("then", "else", "allOf", "anyOf", "oneOf", "$ref", "dependentSchemas", "dependencies"),
        _UNEVALUATED,
    ),
}
_WHOLE = ("not", "if", "contains", "oneOf")
# What a schema that is refused as a whole gives up, in this order.
_COMBINATORS = (
    "dependentSchemas", "dependentRequired", "dependencies", "if", "not", "oneOf", "anyOf", "allOf",
)  # fmt: skip
# How older drafts spell what a refusal names.
_OLDER = {
    "prefixItems": "items",
    "dependentSchemas": "dependencies",
    "dependentRequired": "dependencies",
}
# Whose members have names of their own.
_NAMED = (
    "properties", "patternProperties", "dependentSchemas", "dependentRequired", "dependencies",
    "$defs", "definitions",
)  # fmt: skip


@lru_cache(maxsize=32)
def weaken(constraint: Constraint) -> Constraint:
    """What can be enforced of a JSON Schema: check() accepts it, and it allows all that
    `constraint` allows; at worst any object, or any JSON.

    Raises InvalidRequest for other kinds that check() refuses, for what is no schema, and for
    references that lead nowhere.
    """
    if constraint.kind != "json_schema":
        return check(constraint)
    deadline = time.monotonic() + SECONDS
    asked: Any = None
    schema: Any = None
    for _ in range(MAX_TRIES):
        try:
            return check(constraint if schema is None else _with(constraint, schema))
        except Unsupported as error:
            if error.keyword == "$ref":
                raise
            if schema is None:
                asked = schema = _parsed(constraint.value, error)
            try:
                schema = _without(schema, error)
            except RecursionError:
                schema = True
        if schema is True or time.monotonic() > deadline:
            break
    return check(_with(constraint, {"type": "object"} if _is_object(asked) else True))


def _parsed(text: str, refusal: Unsupported) -> Any:
    def no_constant(_: str) -> Any:
        raise refusal

    try:
        return json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError):
        raise refusal from None


def _with(constraint: Constraint, schema: object) -> Constraint:
    value = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate, which will be left out next
        value = json.dumps(schema, separators=(",", ":"))
    return msgspec.structs.replace(constraint, value=value)


def _is_object(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") in ("object", ["object"])


def _without(schema: Any, error: Unsupported) -> Any:
    """A copy without what `error` names, or without what holds it; True where that is all."""
    steps = [step.replace("~1", "/").replace("~0", "~") for step in error.pointer.split("/")[1:]]
    found = copy.deepcopy(schema)
    if error.keyword:
        return _drop(found, [*steps, error.keyword])
    places = _places(found, steps)
    for i, place in enumerate(places):
        if place.is_keyword and place.key not in HOLDERS:  # a value, or a part of one
            return _drop(found, steps[: i + 1])
    node = places[-1].value if places else found
    combinator = next((k for k in _COMBINATORS if isinstance(node, dict) and k in node), None)
    if combinator is not None:
        return _drop(found, [*steps, combinator])
    if not places:
        return True
    if len(places) < len(steps) or any(place.is_whole for place in places):
        return _drop(found, steps)
    places[-1].holder[places[-1].key] = True
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    """holder[key]; is_keyword: holder is a schema, and no list or map of schemas."""

    holder: Any
    key: Any
    is_keyword: bool

    @property
    def value(self) -> Any:
        return self.holder[self.key]

    @property
    def is_whole(self) -> bool:
        return self.is_keyword and self.key in _WHOLE


def _places(schema: Any, steps: list[str]) -> list[_Place]:
    """The places on the way along `steps`, as far as it leads."""
    found: list[_Place] = []
    node, is_keyword = schema, True
    for step in steps:
        key = _key(node, step, is_keyword)
        if key is None:
            break
        found.append(_Place(node, key, is_keyword))
        node = node[key]
        is_keyword = not (is_keyword and (key in _NAMED or isinstance(node, list)))
    return found


def _key(node: Any, step: str, is_keyword: bool) -> Any:
    """What `step` is called in `node`, whose draft may be an older one; None where nothing is."""
    if isinstance(node, list):
        return int(step) if step.isdecimal() and int(step) < len(node) else None
    if not isinstance(node, dict):
        return None
    if is_keyword and step == "items" and isinstance(node.get("items"), list):
        step = "additionalItems"
    if is_keyword and step not in node:
        step = _OLDER.get(step, step)
    return step if step in node else None


def _drop(schema: Any, steps: list[str]) -> Any:
    """Take out the keyword at `steps`: the first of _WHOLE on the way there, else the last one."""
    places = [place for place in _places(schema, steps) if place.is_keyword]
    if not places:
        return True
    place = next((each for each in places if each.is_whole), places[-1])
    value = place.holder.pop(place.key)
    for other in _WITH.get(place.key, ()):
        place.holder.pop(other, None)
    if place.key == "oneOf" and "anyOf" not in place.holder:
        place.holder["anyOf"] = value
    return schema
