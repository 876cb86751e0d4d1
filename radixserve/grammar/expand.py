"""Finds the alternatives of a schema.

Owns: references, allOf, anyOf, oneOf, not, if, dependent keywords and unevaluated ones, taken apart
until each alternative is plain facts. Must not know: grammars.

Everything is brought into negation normal form first, so leaving out an alternative that cannot be
said can only make the result narrower, never wider.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from radixserve.errors import InvalidRequest
from radixserve.grammar import effort, negate
from radixserve.grammar.document import Document, Schema
from radixserve.grammar.facts import ArrayPart, Conj, Facts, Node, ObjectPart, stated
from radixserve.grammar.refusal import refused

MAX_ALTERNATIVES = 512
_MAX_STEPS = 20000
_LOOK_AHEAD = 4
_STEP = 20  # as effort counts

_NO = Node(False, "")


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the options holds; an option is a conjunction of nodes and facts."""

    options: tuple[tuple[Node | Facts | Choice, ...], ...]


Part = Node | Facts | Choice


class Expander:
    """The alternatives of conjunctions of one document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._steps = 0
        self._lossy = 0  # how often something was said more narrowly than it is
        self._disjoint: dict[tuple[str, str], bool] = {}

    def alternatives(self, conj: Conj) -> list[Facts]:
        """The facts of which one must hold wholly. Raises InvalidRequest when there are too
        many."""
        pointer = conj[0].pointer if conj else ""
        found: list[Facts] = []
        stack: list[tuple[Facts, list[Part]]] = [(Facts(), list(conj))]
        while stack:
            facts, todo = stack.pop()
            self._steps += 1
            effort.spend(_STEP)
            if self._steps > _MAX_STEPS or len(found) > MAX_ALTERNATIVES:
                raise refused(pointer, "", "its combinators multiply to too many alternatives")
            if not facts.types:
                continue
            if not todo:
                found.append(facts)
                continue
            part = _next(todo)
            if isinstance(part, Choice):
                stack.extend((facts, [*option, *todo]) for option in reversed(part.options))
            elif isinstance(part, Facts):
                stack.append((facts.joined(part), todo))
            elif (more := self._taken_apart(part)) is not None:
                stack.append((facts, [*more, *todo]))
        return found

    def _taken_apart(self, node: Node) -> list[Part] | None:
        """What `node` says, one level down; None when nothing can satisfy it."""
        if isinstance(node.schema, bool):
            return None if node.schema == node.negated else []
        if node.negated:
            return [Choice(tuple(self._negated(node)))]
        return list(self._positive(node.schema, node))

    def _negated(self, node: Node) -> Iterator[tuple[Part, ...]]:
        assert isinstance(node.schema, dict)
        for keyword, value in node.schema.items():
            self._lossy += not negate.is_exact(node.schema, keyword)
            if keyword == "$ref":
                yield (self._followed(node, negated=True),)
            else:
                yield from negate.options(node.schema, keyword, value, node)

    def _followed(self, node: Node, *, negated: bool) -> Node:
        assert isinstance(node.schema, dict)
        reference = node.schema["$ref"]
        if reference in node.trail:
            raise refused(node.pointer, "$ref", "refers to itself without a value in between")
        schema = self._document.target(reference)
        pointer = self._document.pointer(schema, node.pointer)
        return Node(schema, pointer, negated, (*node.trail, reference), node.is_silent)

    def _positive(self, schema: dict[str, Any], node: Node) -> Iterator[Part]:
        unevaluated = [k for k in schema if k.startswith("unevaluated")]
        if unevaluated:
            yield self._evaluated(schema, unevaluated, node)
            return

        def inner(s: Schema, step: str, negated: bool = False) -> Node:
            place = self._document.pointer(s, node.pointer + step)
            return Node(s, place, negated, node.trail, node.is_silent)

        def below(s: Schema, step: str) -> Node:
            return _below(inner(s, step))

        yield stated(schema, node.pointer, below, is_silent=node.is_silent)
        if "$ref" in schema:
            yield self._followed(node, negated=False)
        for i, s in enumerate(schema.get("allOf", ())):
            yield inner(s, f"/allOf/{i}")
        if "anyOf" in schema:
            branches = [inner(s, f"/anyOf/{i}") for i, s in enumerate(schema["anyOf"])]
            yield Choice(tuple((branch,) for branch in branches))
        if "oneOf" in schema:
            yield self._exactly_one(
                [inner(s, f"/oneOf/{i}") for i, s in enumerate(schema["oneOf"])]
            )
        if "not" in schema:
            yield inner(schema["not"], "/not", negated=True)
        if "if" in schema:
            yield _conditional(schema, inner)
        yield from _dependent(schema, inner, node)

    def _exactly_one(self, branches: list[Node]) -> Choice:
        options = []
        for i, branch in enumerate(branches):
            others = [
                Node(other.schema, other.pointer, True, other.trail)
                for j, other in enumerate(branches)
                if j != i and not self._apart(branch, other)
            ]
            options.append((branch, *others))
        return Choice(tuple(options))

    def _apart(self, one: Node, two: Node) -> bool:
        """Provably no value satisfies both."""
        key = (min(one.key, two.key), max(one.key, two.key))
        if key not in self._disjoint:
            self._disjoint[key] = False  # a proof that leads back to itself proves nothing
            self._disjoint[key] = self.is_empty((one, two), _LOOK_AHEAD)
        return self._disjoint[key]

    def is_empty(self, conj: Conj, depth: int) -> bool:
        """Provably nothing satisfies `conj`; looks `depth` levels into required properties. What
        was said more narrowly than it is proves nothing."""
        before = self._lossy
        try:
            found = self.alternatives(conj)
        except InvalidRequest:
            return False
        return self._lossy == before and all(self._is_void(facts, depth) for facts in found)

    def _is_void(self, facts: Facts, depth: int) -> bool:
        if facts.enums:
            return not _in_all(facts)
        if facts.types != {"object"} or depth == 0:
            return _impossible_range(facts)
        return any(
            self.is_empty(named_conj(facts.objects, name), depth - 1) for name in facts.required
        )

    def _evaluated(self, schema: dict[str, Any], keywords: list[str], node: Node) -> Choice:
        """unevaluatedProperties and unevaluatedItems: every alternative of the rest is closed."""
        self._lossy += 1
        rest = {k: v for k, v in schema.items() if k not in keywords}
        options = []
        for facts in self.alternatives((Node(rest, node.pointer, False, node.trail),)):
            for keyword in keywords:
                value = schema[keyword]
                inside = _below(Node(value, self._document.pointer(value, node.pointer)))
                if keyword == "unevaluatedProperties":
                    _close_object(facts, inside)
                else:
                    _close_array(facts, inside, node.pointer)
            options.append((_silent(facts) if node.is_silent else facts,))
        return Choice(tuple(options))


def _silent(facts: Facts) -> Facts:
    arrays = [replace(part, is_silent=True) for part in facts.arrays]
    objects = [replace(part, is_silent=True) for part in facts.objects]
    return replace(facts, arrays=arrays, objects=objects)


def _next(todo: list[Part]) -> Part:
    """Takes the next part out, choices last: plain facts may already rule their options out."""
    for i, part in enumerate(todo):
        if not isinstance(part, Choice):
            return todo.pop(i)
    return todo.pop(0)


def _below(node: Node) -> Node:
    return Node(node.schema, node.pointer, node.negated)


def _conditional(schema: dict[str, Any], inner: Any) -> Choice:
    then, otherwise = schema.get("then", True), schema.get("else", True)
    met = (inner(schema["if"], "/if"), inner(then, "/then"))
    unmet = (inner(schema["if"], "/if", True), inner(otherwise, "/else"))
    return Choice((met, unmet))


def _dependent(schema: dict[str, Any], inner: Any, node: Node) -> Iterator[Choice]:
    for name, needed in schema.get("dependentRequired", {}).items():
        yield _if_present(name, Facts(required=dict.fromkeys(needed)), node)
    for name, needed in schema.get("dependentSchemas", {}).items():
        yield _if_present(name, inner(needed, f"/dependentSchemas/{name}"), node)


def _if_present(name: str, then: Node | Facts, node: Node) -> Choice:
    is_object = frozenset({"object"})
    absent = ObjectPart({name: _NO}, (), None, node.pointer, is_silent=True)
    return Choice(
        (
            (Facts(types=is_object, required={name: None}), then),
            (Facts(types=is_object, objects=[absent]),),
            (negate.other_than("object"),),
        )
    )


def named_conj(parts: list[ObjectPart], name: str) -> Conj:
    """What `parts` say about the property `name`; patterns are left to the caller."""
    found = []
    for part in parts:
        if name in part.named:
            found.append(part.named[name])
        elif part.rest is not None and not part.patterns:
            found.append(part.rest)
    return tuple(found)


def _close_object(facts: Facts, inside: Node) -> None:
    speaking = [part for part in facts.objects if not part.is_silent]
    if any(part.rest is not None for part in speaking):
        return
    named = {name: Node(True, "") for part in speaking for name in part.named}
    patterns = tuple((p, Node(True, "")) for part in speaking for p, _ in part.patterns)
    facts.objects = [*facts.objects, ObjectPart(named, patterns, inside, inside.pointer)]


def _close_array(facts: Facts, inside: Node, pointer: str) -> None:
    if facts.contains:
        raise refused(pointer, "unevaluatedItems", "cannot be enforced beside contains")
    speaking = [part for part in facts.arrays if not part.is_silent]
    if any(part.rest is not None for part in speaking):
        return
    size = max((len(part.prefix) for part in speaking), default=0)
    facts.arrays = [*facts.arrays, ArrayPart((Node(True, ""),) * size, inside)]


def _in_all(facts: Facts) -> bool:
    """Some value of the right type stands in every enum."""
    first, *others = facts.enums
    effort.spend(sum(map(len, facts.enums)))
    marks = [set(map(identity, values)) for values in others]
    return any(
        kind(value) in facts.types and all(identity(value) in each for each in marks)
        for value in first
    )


def _impossible_range(facts: Facts) -> bool:
    bounds = facts.bounds
    if facts.types == {"number"} and facts.whole and facts.broken:
        return True
    if facts.types != {"number"} or bounds.low is None or bounds.high is None:
        return False
    return bounds.low > bounds.high


def kind(value: Any) -> str:
    """The JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "number"


def identity(value: Any) -> object:
    """Equal for values that are equal as JSON: 1 and 1.0 are, 1 and true are not. Can be hashed."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        return ("array", tuple(map(identity, value)))
    if isinstance(value, dict):
        return ("object", frozenset((name, identity(member)) for name, member in value.items()))
    return value
