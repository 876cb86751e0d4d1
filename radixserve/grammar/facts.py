"""What one alternative of a schema asks for, gathered by type.

Owns: nodes (a schema, perhaps negated), facts and how they join. Must not know: how alternatives
are found, what becomes of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

from radixserve.grammar import effort
from radixserve.grammar.digits import Bounds
from radixserve.grammar.document import Schema

ALL_TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})


@dataclass(frozen=True, slots=True)
class Node:
    """A schema that holds, or with `negated` one that does not. trail: references already followed
    on the way here without descending into a value. is_silent: stands within a negation, so it
    evaluates nothing for unevaluatedItems and unevaluatedProperties."""

    schema: Schema
    pointer: str
    negated: bool = False
    trail: tuple[str, ...] = ()
    is_silent: bool = False

    @property
    def key(self) -> str:
        text = json.dumps(self.schema, ensure_ascii=False)
        effort.spend(len(text) // 64)
        return f"not {text}" if self.negated else text


Conj = tuple[Node, ...]  # all of these hold


@dataclass(frozen=True, slots=True)
class TextRule:
    """A pattern or format that a string matches, or with `negated` does not."""

    keyword: str
    value: str
    negated: bool
    pointer: str


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """Items by place, then `rest` (None: not spoken about). is_silent: as in Node."""

    prefix: Conj
    rest: Node | None
    is_silent: bool = False


@dataclass(frozen=True, slots=True)
class Contains:
    node: Node
    low: int
    high: int | None
    pointer: str


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """Properties by name, by pattern of the name, then `rest` (None: not spoken about).

    is_silent: as in Node.
    """

    named: dict[str, Node]
    patterns: tuple[tuple[str, Node], ...]
    rest: Node | None
    pointer: str
    is_silent: bool = False


@dataclass(slots=True)
class Facts:
    """One alternative. `enums`: each a set of values, all of which hold; `excluded`: single
    values. whole: numbers are integers; broken: they are not."""

    types: frozenset[str] = ALL_TYPES
    whole: bool = False
    broken: bool = False
    enums: list[list[Any]] = field(default_factory=list)
    excluded: list[tuple[Any, str]] = field(default_factory=list)
    bounds: Bounds = field(default_factory=Bounds)
    divisors: list[tuple[Fraction, bool, str]] = field(default_factory=list)
    texts: list[TextRule] = field(default_factory=list)
    length: tuple[int, int | None] = (0, None)
    arrays: list[ArrayPart] = field(default_factory=list)
    items: tuple[int, int | None] = (0, None)
    unique: str | None = None
    contains: list[Contains] = field(default_factory=list)
    objects: list[ObjectPart] = field(default_factory=list)
    required: dict[str, None] = field(default_factory=dict)
    names: list[Node] = field(default_factory=list)
    size: tuple[int, int | None] = (0, None)

    def joined(self, other: Facts) -> Facts:
        """Both hold."""
        return Facts(
            types=self.types & other.types,
            whole=self.whole or other.whole,
            broken=self.broken or other.broken,
            enums=self.enums + other.enums,
            excluded=self.excluded + other.excluded,
            bounds=self.bounds.tightened(other.bounds),
            divisors=self.divisors + other.divisors,
            texts=self.texts + other.texts,
            length=_narrowed(self.length, other.length),
            arrays=self.arrays + other.arrays,
            items=_narrowed(self.items, other.items),
            unique=other.unique if self.unique is None else self.unique,
            contains=self.contains + other.contains,
            objects=self.objects + other.objects,
            required=self.required | other.required,
            names=self.names + other.names,
            size=_narrowed(self.size, other.size),
        )


def _narrowed(one: tuple[int, int | None], two: tuple[int, int | None]) -> tuple[int, int | None]:
    highs = [high for high in (one[1], two[1]) if high is not None]
    return max(one[0], two[0]), min(highs, default=None)


def fraction(value: float) -> Fraction:
    """The number as it was written."""
    return Fraction(Decimal(repr(value)))


def stated(schema: dict[str, Any], pointer: str, at: Any, *, is_silent: bool = False) -> Facts:
    """The facts that the assertions of `schema` state by themselves.

    at: makes the node of a subschema from it and its relative pointer.
    """
    facts = Facts()
    if "type" in schema:
        facts = _typed(schema["type"])
    if "const" in schema:
        facts.enums.append([schema["const"]])
    if "enum" in schema:
        facts.enums.append(schema["enum"])
    facts.bounds = _bounds(schema)
    if "multipleOf" in schema:
        facts.divisors.append((fraction(schema["multipleOf"]), False, pointer))
    for keyword in ("pattern", "format"):
        if keyword in schema:
            facts.texts.append(TextRule(keyword, schema[keyword], False, pointer))
    facts.length = schema.get("minLength", 0), schema.get("maxLength")
    facts.items = schema.get("minItems", 0), schema.get("maxItems")
    facts.size = schema.get("minProperties", 0), schema.get("maxProperties")
    facts.required = dict.fromkeys(schema.get("required", ()))
    _containers(facts, schema, pointer, at, is_silent)
    return facts


def _typed(names: list[str]) -> Facts:
    types = frozenset("number" if name == "integer" else name for name in names)
    return Facts(types=types, whole="integer" in names and "number" not in names)


def _bounds(schema: dict[str, Any]) -> Bounds:
    bounds = Bounds()
    for keyword in ("minimum", "exclusiveMinimum"):
        if keyword in schema:
            low = Bounds(low=fraction(schema[keyword]), without_low=keyword != "minimum")
            bounds = bounds.tightened(low)
    for keyword in ("maximum", "exclusiveMaximum"):
        if keyword in schema:
            high = Bounds(high=fraction(schema[keyword]), without_high=keyword != "maximum")
            bounds = bounds.tightened(high)
    return bounds


def _containers(
    facts: Facts, schema: dict[str, Any], pointer: str, at: Any, is_silent: bool
) -> None:
    if "prefixItems" in schema or "items" in schema:
        prefix = tuple(
            at(s, f"/prefixItems/{i}") for i, s in enumerate(schema.get("prefixItems", ()))
        )
        rest = at(schema["items"], "/items") if "items" in schema else None
        facts.arrays.append(ArrayPart(prefix, rest, is_silent))
    if schema.get("uniqueItems"):
        facts.unique = pointer
    if "contains" in schema:
        low, high = schema.get("minContains", 1), schema.get("maxContains")
        facts.contains.append(Contains(at(schema["contains"], "/contains"), low, high, pointer))
    if {"properties", "patternProperties", "additionalProperties"} & schema.keys():
        named = {n: at(s, f"/properties/{n}") for n, s in schema.get("properties", {}).items()}
        patterns = tuple(
            (p, at(s, f"/patternProperties/{p}"))
            for p, s in schema.get("patternProperties", {}).items()
        )
        rest = None
        if "additionalProperties" in schema:
            rest = at(schema["additionalProperties"], "/additionalProperties")
        facts.objects.append(ObjectPart(named, patterns, rest, pointer, is_silent))
    if "propertyNames" in schema:
        facts.names.append(at(schema["propertyNames"], "/propertyNames"))


def negated_literal(keyword: str, value: Any, pointer: str) -> Facts | None:
    """The facts of "this one keyword does not hold"; None where nothing here can say so."""
    match keyword:
        case "pattern":
            rule = TextRule(keyword, value, True, pointer)
            return Facts(types=frozenset({"string"}), texts=[rule])
        case "multipleOf":
            divisor = (fraction(value), True, pointer)
            return Facts(types=frozenset({"number"}), whole=True, divisors=[divisor])
        case "const":
            return Facts(excluded=[(value, pointer)])
        case "enum":
            return Facts(excluded=[(one, pointer) for one in value])
        case "type":
            excluded = {"number" if name == "integer" else name for name in value}
            return Facts(types=ALL_TYPES - excluded)
        case _:
            return None
