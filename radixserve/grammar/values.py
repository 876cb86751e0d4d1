"""Single values against schemas.

Owns: which values of an enum satisfy everything else that is asked, finite sets of values. Must not
know: grammars.
"""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.protocols import Validator

from radixserve.grammar import automaton, formats
from radixserve.grammar.document import Document, Schema
from radixserve.grammar.expand import Expander, kind, same
from radixserve.grammar.facts import Conj, Facts, Node

MAX_VALUES = 64

__all__ = ["Filter", "kind", "same"]


class Filter:
    """Checks values against nodes of one document."""

    def __init__(self, document: Document) -> None:
        checker = FormatChecker(formats=())
        for name in formats.PATTERNS:
            checker.checks(name)(_format_check(name))
        schema = document.standalone()
        # Ours is narrower than a format and none is wider: under `not` each errs the other way.
        readings = (checker, Draft202012Validator.FORMAT_CHECKER, None)
        self._roots: list[Validator] = [
            Draft202012Validator(schema, format_checker=reading) for reading in readings
        ]

    def valid(self, candidates: list[Any], conj: Conj) -> list[Any]:
        """Those of the candidates that satisfy every node, each once."""
        checks = [
            (root.evolve(schema=schema), node.negated)
            for root in self._roots
            for node in conj
            if (schema := _without_list(node, candidates)) is not True or node.negated
        ]
        kept: list[Any] = []
        seen: set[str] = set()
        for value in candidates:
            if isinstance(value, str):
                if value in seen:
                    continue
                seen.add(value)
            elif any(same(value, other) for other in kept):
                continue
            if all(check.is_valid(value) != negated for check, negated in checks):
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
