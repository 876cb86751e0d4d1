"""The negation of single keywords.

Owns: for each keyword, the alternatives under which it does not hold. Must not know: how
alternatives are joined.

A keyword without an entry gives no alternative: what is left is narrower than the true negation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from radixserve.grammar.facts import ALL_TYPES, Contains, Facts, Node, ObjectPart, negated_literal

Option = tuple[Any, ...]  # nodes and facts that hold together


def other_than(kind: str) -> Facts:
    return Facts(types=ALL_TYPES - {kind})


def options(schema: dict[str, Any], keyword: str, value: Any, node: Node) -> Iterator[Option]:
    """The ways in which `keyword` of `schema` fails."""
    literal = negated_literal(keyword, value, node.pointer)
    if keyword == "type" and "integer" in value and "number" not in value:
        yield (Facts(types=frozenset({"number"}), broken=True),)
    if literal is not None:
        yield (literal,)
    elif keyword in _RULES:
        yield from _RULES[keyword](schema, value, node)


def is_exact(schema: dict[str, Any], keyword: str) -> bool:
    """Whether `options` gives every way in which `keyword` fails, not only some."""
    if keyword == "items":
        return "prefixItems" not in schema
    if keyword == "contains":
        return not {"minContains", "maxContains"} & schema.keys()
    return keyword in _RULES or keyword in _EXACT


def _child(schema: Any, node: Node, *, negated: bool, below: bool = True) -> Node:
    return Node(schema, node.pointer, negated, () if below else node.trail, is_silent=not below)


def _any_of(_: dict[str, Any], value: Any, node: Node) -> Iterator[Option]:
    yield tuple(_child(s, node, negated=True, below=False) for s in value)


def _all_of(_: dict[str, Any], value: Any, node: Node) -> Iterator[Option]:
    for schema in value:
        yield (_child(schema, node, negated=True, below=False),)


def _one_of(_: dict[str, Any], value: Any, node: Node) -> Iterator[Option]:
    yield from _any_of(_, value, node)
    for pair in itertools.combinations(value, 2):
        yield tuple(_child(s, node, negated=False, below=False) for s in pair)


def _not(_: dict[str, Any], value: Any, node: Node) -> Iterator[Option]:
    yield (_child(value, node, negated=False, below=False),)


def _if(schema: dict[str, Any], value: Any, node: Node) -> Iterator[Option]:
    for branch, is_else in (("then", False), ("else", True)):
        if branch in schema:
            yield (
                _child(value, node, negated=is_else, below=False),
                _child(schema[branch], node, negated=True, below=False),
            )


def _required(_: dict[str, Any], value: Any, node: Node) -> Iterator[Option]:
    for name in value:
        yield (_without(name, node),)


def _without(name: str, node: Node) -> Facts:
    part = ObjectPart({name: Node(False, node.pointer)}, (), None, node.pointer, is_silent=True)
    return Facts(types=frozenset({"object"}), objects=[part])


def _dependent_required(_: dict[str, Any], value: Any, node: Node) -> Iterator[Option]:
    for name, needed in value.items():
        for other in needed:
            yield (_without(other, node), Facts(required={name: None}))


def _properties(_: dict[str, Any], value: Any, node: Node) -> Iterator[Option]:
    for name, schema in value.items():
        inside = _child(schema, node, negated=True)
        part = ObjectPart({name: inside}, (), None, node.pointer, is_silent=True)
        facts = Facts(types=frozenset({"object"}), objects=[part], required={name: None})
        yield (facts,)


def _items(schema: dict[str, Any], value: Any, node: Node) -> Iterator[Option]:
    if "prefixItems" not in schema:
        wrong = Contains(_child(value, node, negated=True), 1, None, node.pointer)
        yield (Facts(types=frozenset({"array"}), contains=[wrong]),)


def _contains(schema: dict[str, Any], value: Any, node: Node) -> Iterator[Option]:
    if schema.get("minContains", 1) == 1 and "maxContains" not in schema:
        none = {"type": ["array"], "items": {"not": value}}
        yield (Node(none, node.pointer, is_silent=True),)


def _bound(keyword: str, kind: str, opposite: str, shift: int) -> Callable[..., Iterator[Option]]:
    def rule(_: dict[str, Any], value: Any, node: Node) -> Iterator[Option]:
        if value + shift >= 0 or kind == "number":
            yield (_child({"type": [kind], opposite: value + shift}, node, negated=False),)

    rule.__name__ = keyword
    return rule


_BOUNDS = (
    ("minimum", "number", "exclusiveMaximum", 0),
    ("maximum", "number", "exclusiveMinimum", 0),
    ("exclusiveMinimum", "number", "maximum", 0),
    ("exclusiveMaximum", "number", "minimum", 0),
    ("minLength", "string", "maxLength", -1),
    ("maxLength", "string", "minLength", 1),
    ("minItems", "array", "maxItems", -1),
    ("maxItems", "array", "minItems", 1),
    ("minProperties", "object", "maxProperties", -1),
    ("maxProperties", "object", "minProperties", 1),
)

# Literals, and keywords that say nothing by themselves.
_EXACT = frozenset(
    {"type", "const", "enum", "pattern", "$ref", "then", "else", "minContains", "maxContains"}
)

_RULES: dict[str, Callable[[dict[str, Any], Any, Node], Iterator[Option]]] = {
    "anyOf": _any_of,
    "allOf": _all_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "required": _required,
    "dependentRequired": _dependent_required,
    "properties": _properties,
    "items": _items,
    "contains": _contains,
    **{entry[0]: _bound(*entry) for entry in _BOUNDS},
}
