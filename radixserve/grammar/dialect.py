"""What the draft that a schema names by $schema means by its own words.

Owns: which keywords a draft has, what it ignores, its integers, schemas with an identity of their
own. Must not know: references, what can be enforced.

Keywords that a draft lacks are enforced all the same, since that allows less; but under `not`, and
wherever else one schema excludes another or says something of what others leave over, it would
allow more. A document that has such a place is read to the letter of its draft.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_EXCLUDING = frozenset(
    {"not", "oneOf", "if", "contains", "unevaluatedItems", "unevaluatedProperties"}
)
_REST = frozenset({"prefixItems", "items"})  # beside the one the other means less
_SINCE_6 = frozenset({"const", "contains", "propertyNames", "examples"})
_SINCE_7 = frozenset({"if", "then", "else"})
_SINCE_2019 = frozenset(
    {
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedProperties",
        "unevaluatedItems",
        "minContains",
        "maxContains",
        "$anchor",
        "$recursiveRef",
    }
)
_SINCE_2020 = frozenset({"prefixItems", "$dynamicRef"})
_UNTIL_7 = frozenset({"dependencies"})
_UNTIL_2019 = frozenset({"additionalItems"})
_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")
_LACKING = {
    4: _SINCE_6 | _SINCE_7 | _SINCE_2019 | _SINCE_2020,
    6: _SINCE_7 | _SINCE_2019 | _SINCE_2020,
    7: _SINCE_2019 | _SINCE_2020,
    2019: _SINCE_2020 | _UNTIL_7,
    2020: _UNTIL_7 | _UNTIL_2019,
}
_DRAFTS = {
    "draft-04/": 4,
    "draft-06/": 6,
    "draft-07/": 7,
    "draft/2019-09/": 2019,
    "draft/2020-12/": 2020,
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """draft: None where the schema names none. is_strict: it is read to the letter. resources:
    pointers of schemas inside that have an identity of their own, to which references in them are
    relative."""

    draft: int | None
    is_strict: bool
    resources: tuple[str, ...]

    @staticmethod
    def of(raw: object) -> Dialect:
        """The dialect of a whole document."""
        named = raw.get("$schema") if isinstance(raw, dict) else None
        found = [d for mark, d in _DRAFTS.items() if isinstance(named, str) and mark in named]
        draft = found[0] if found else None
        identity = "id" if draft == 4 else "$id"
        is_strict, resources = False, []
        for pointer, node in walk(raw, ""):
            is_strict |= draft is not None and (
                node.keys() >= _REST or not _EXCLUDING.isdisjoint(node)
            )
            name = node.get(identity)
            if pointer and isinstance(name, str) and not name.startswith("#"):
                resources.append(pointer)
        return Dialect(draft, is_strict, tuple(resources))

    def read(self, schema: dict[str, Any]) -> dict[str, Any]:
        """What of one schema counts."""
        if self.draft is None or not self.is_strict:
            return schema
        if "$ref" in schema and self.draft <= 7:
            return {"$ref": schema["$ref"]}
        lacking = _LACKING[self.draft]
        if self.draft == 4:  # there they are flags
            lacking = lacking | {k for k in _EXCLUSIVE if not isinstance(schema.get(k), bool)}
        return {keyword: value for keyword, value in schema.items() if keyword not in lacking}

    def value(self, value: Any) -> Any:
        """A value of const or enum. To draft 4 1.0 is no integer, but 1 is, and they are equal."""
        if self.draft != 4:
            return value
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {name: self.value(member) for name, member in value.items()}
        return int(value) if isinstance(value, float) and value.is_integer() else value


def walk(node: object, pointer: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object in `node`, with its JSON pointer."""
    stack = [(pointer, node)]
    while stack:
        at, value = stack.pop()
        if isinstance(value, dict):
            yield at, value
            stack.extend((f"{at}/{step(str(k))}", v) for k, v in value.items())
        elif isinstance(value, list):
            stack.extend((f"{at}/{i}", v) for i, v in enumerate(value))


def step(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
