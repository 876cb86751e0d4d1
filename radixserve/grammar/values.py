"""Single values against schemas.

Owns: which values of an enum satisfy everything else that is asked, finite sets of values. Must not
know: grammars.

A validator's own matcher of patterns takes exponential time on some, and holds the interpreter
meanwhile; so patterns are matched by our automata here, and comparing takes time in proportion to
the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator, FormatChecker, ValidationError, validators

from radixserve.grammar import automaton, effort, formats
from radixserve.grammar.document import Document, Schema
from radixserve.grammar.expand import Expander, identity, kind
from radixserve.grammar.facts import Conj, Facts, Node
from radixserve.grammar.refusal import refused
from radixserve.grammar.regex import RegexError

MAX_VALUES = 64
_CHECKING = 10  # steps for one value against one schema, without what stands inside

__all__ = ["Filter", "kind"]

Errors = Iterator[ValidationError]


class _DoubtfulError(Exception):
    """Readers of a pattern disagree about a text."""


class _Check(NamedTuple):
    validator: Any
    is_negated: bool
    pointer: str


class Filter:
    """Checks values against nodes of one document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._pointer = ""  # of what is being checked
        self._sets: dict[int, frozenset[object]] = {}  # by the id of an enum's list
        checker = FormatChecker(formats=())
        for name in formats.PATTERNS:
            checker.checks(name)(_format_check(name))
        schema = document.standalone()
        extend: Any = validators.extend
        reader = extend(
            Draft202012Validator,
            {
                "pattern": self._pattern,
                "patternProperties": self._by_pattern,
                "additionalProperties": self._additional,
                "unevaluatedProperties": self._unevaluated,
                "uniqueItems": _unique,
                "enum": self._enum,
                "const": _const,
            },
        )
        # Ours is narrower than a format and none is wider: under `not` each errs the other way.
        readings = (checker, Draft202012Validator.FORMAT_CHECKER, None)
        self._roots: list[Any] = [reader(schema, format_checker=reading) for reading in readings]

    def valid(self, candidates: list[Any], conj: Conj) -> list[Any]:
        """Those of the candidates that satisfy every node, each once. Raises InvalidRequest for
        patterns that cannot be read."""
        checks = [
            _Check(root.evolve(schema=schema), node.negated, node.pointer)
            for root in self._roots
            for node in conj
            if (schema := _without_list(node, candidates)) is not True or node.negated
        ]
        kept: list[Any] = []
        seen: set[object] = set()
        for value in candidates:
            mark = identity(value)
            if mark not in seen:
                seen.add(mark)
                if self._satisfies(value, checks):
                    kept.append(value)
        return kept

    def all_of(self, conj: Conj, expander: Expander) -> list[Any] | None:
        """Every value that satisfies `conj`, or None when they are many or not simple."""
        candidates: list[Any] = []
        for facts in expander.alternatives(conj):
            found = _finite(facts)
            if found is None:
                return None
            candidates.extend(found)
        kept = self.valid(candidates, conj)
        return kept if len(kept) <= MAX_VALUES else None

    def _satisfies(self, value: object, checks: list[_Check]) -> bool:
        """A value that readers disagree about does not."""
        try:
            for check in checks:
                effort.spend(_CHECKING)
                self._pointer = check.pointer
                if check.validator.is_valid(value) == check.is_negated:
                    return False
        except _DoubtfulError:
            return False
        return True

    # Keywords, in the shape that the validator calls: itself, the keyword's value, the value that
    # is checked, the schema.

    def _pattern(self, _: Any, pattern: str, value: object, schema: Any) -> Errors:
        if isinstance(value, str) and not self._matches(pattern, value, schema, "pattern"):
            yield ValidationError("pattern")

    def _by_pattern(self, validator: Any, patterns: Any, value: object, schema: Any) -> Errors:
        if isinstance(value, dict):
            for pattern, inner in patterns.items():
                for name, member in value.items():
                    if self._matches(pattern, name, schema, "patternProperties"):
                        yield from validator.descend(member, inner)

    def _additional(self, validator: Any, inner: Any, value: object, schema: Any) -> Errors:
        if isinstance(value, dict):
            for name, member in value.items():
                if name not in schema.get("properties", ()) and not any(
                    [
                        self._matches(pattern, name, schema, "patternProperties")
                        for pattern in schema.get("patternProperties", ())
                    ]
                ):
                    yield from validator.descend(member, inner)

    def _unevaluated(self, validator: Any, inner: Any, value: object, schema: Any) -> Errors:
        if (
            isinstance(value, dict) and self._document.has_name_patterns
        ):  # the validator would match them itself
            raise _DoubtfulError
        yield from _UNEVALUATED(validator, inner, value, schema)

    def _matches(self, pattern: str, text: str, schema: Any, keyword: str) -> bool:
        effort.spend(len(text))
        try:
            sure = automaton.from_regex(pattern, search=True).accepts(text)
            possible = automaton.from_regex(pattern, search=True, narrow=False).accepts(text)
        except (RegexError, automaton.TooLarge) as error:
            pointer = self._document.pointer(schema, self._pointer)
            raise refused(pointer, keyword, f"{pattern!r}: {error}") from error
        if sure != possible:
            raise _DoubtfulError
        return sure

    def _enum(self, _: Any, values: list[Any], value: object, __: Any) -> Errors:
        if id(values) not in self._sets:
            effort.spend(len(values))
            self._sets[id(values)] = frozenset(map(identity, values))
        if identity(value) not in self._sets[id(values)]:
            yield ValidationError("enum")


_UNEVALUATED: Any = Draft202012Validator.VALIDATORS["unevaluatedProperties"]


def _unique(_: Any, is_asked: bool, value: object, __: Any) -> Errors:
    if is_asked and isinstance(value, list) and len(set(map(identity, value))) < len(value):
        yield ValidationError("uniqueItems")


def _const(_: Any, wanted: object, value: object, __: Any) -> Errors:
    if identity(wanted) != identity(value):
        yield ValidationError("const")


def _without_list(node: Node, candidates: list[Any]) -> Schema:
    """The schema less the enum that the candidates came from."""
    schema = node.schema
    if node.negated or isinstance(schema, bool) or schema.get("enum") is not candidates:
        return schema
    return {k: v for k, v in schema.items() if k != "enum"} or True


def _finite(facts: Facts) -> list[Any] | None:
    if facts.enums:
        return facts.enums[0]
    if facts.types - {"null", "boolean", "number"}:
        return None
    found: list[Any] = [None] if "null" in facts.types else []
    if "boolean" in facts.types:
        found += [True, False]
    if "number" in facts.types:
        low, high = facts.bounds.low, facts.bounds.high
        if not facts.whole or low is None or high is None or high - low > MAX_VALUES:
            return None
        found += range(-(-low.numerator // low.denominator), high.numerator // high.denominator + 1)
    return found


def _format_check(name: str) -> Any:
    accepts = automaton.from_regex

    def check(value: object) -> bool:
        return not isinstance(value, str) or accepts(formats.PATTERNS[name], search=False).accepts(
            value
        )

    return check
