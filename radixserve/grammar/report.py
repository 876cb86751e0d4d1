"""Explains what becomes of a schema, keyword by keyword.

Owns: the words of the report. Must not know: how any of it is done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from radixserve.errors import InvalidRequest
from radixserve.grammar import check, document, formats, structure, structure_reader
from radixserve.grammar.refusal import Unsupported
from radixserve.wire.params import Constraint

Verdict = Literal["enforced", "rewritten", "ignored", "refused"]

_REWRITTEN = {
    "$ref": "joined with the keywords beside it",
    "allOf": "joined into one",
    "anyOf": "joined with the keywords beside it, branch by branch",
    "oneOf": "each branch without the others it may overlap with",
    "not": "turned into what remains",
    "if": "one alternative for then, one for else",
    "dependentRequired": "alternatives with and without the property",
    "dependentSchemas": "alternatives with and without the property",
    "dependencies": "alternatives with and without the property",
    "contains": "counted while the items are generated",
    "uniqueItems": "every value at most once; long lists keep the declared order",
    "unevaluatedProperties": "closed over what the alternatives declare",
    "unevaluatedItems": "closed over what the alternatives declare",
    "nullable": "null is allowed too",
}
_OPEN = "only declared properties are generated, where any are"


@dataclass(frozen=True, slots=True)
class Finding:
    """pointer: JSON pointer of the keyword, or "" for the whole schema."""

    pointer: str
    keyword: str
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """findings: one for each keyword, in the order of the text. str() is a table of them."""

    findings: tuple[Finding, ...]

    @property
    def accepted(self) -> bool:
        return not self.refused

    @property
    def refused(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict == "refused")

    def __str__(self) -> str:
        rows = [(f.pointer or "(whole)", f.verdict, f.note) for f in self.findings]
        place = max((len(row[0]) for row in rows), default=0)
        lines = [f"{at:<{place}}  {verdict:<9}  {note}".rstrip() for at, verdict, note in rows]
        return "\n".join([*lines, "accepted" if self.accepted else "refused"])


def explain(schema: object) -> Report:
    """What each keyword of `schema` comes to. The first refusal is the only one: it ends the
    schema."""
    try:
        findings = [_finding(*place) for place in _keywords(schema, "")]
        check.check(Constraint(kind="json_schema", value=json.dumps(schema, ensure_ascii=False)))
    except InvalidRequest as error:
        return Report(tuple(_with_refusal(findings, error)))
    except RecursionError:
        return Report((Finding("", "", "refused", "nested too deeply"),))
    except (TypeError, ValueError) as error:
        return Report((Finding("", "", "refused", f"not JSON: {error}"),))
    return Report(tuple(findings))


def explain_constraint(constraint: Constraint) -> Report:
    """The same for a constraint of any kind. A structural tag has the findings of the schemas in
    it, other kinds have one."""
    if constraint.kind == "json_schema":
        try:
            return explain(json.loads(constraint.value))
        except ValueError as error:
            return Report((Finding("", "", "refused", f"not JSON: {error}"),))
    try:
        check.check(constraint)
    except InvalidRequest as error:
        return of_refusal(error)
    findings = [Finding("", constraint.kind, "enforced")]
    if constraint.kind == "structural_tag":
        for pointer, schema in structure.schemas(
            structure_reader.read(json.loads(constraint.value))
        ):
            findings += [_finding(*place) for place in _keywords(schema, pointer)]
    return Report(tuple(findings))


def of_refusal(error: InvalidRequest) -> Report:
    """The report of a constraint that is refused as a whole."""
    return Report((_refusal(error),))


def _refusal(error: InvalidRequest) -> Finding:
    if not isinstance(error, Unsupported):
        return Finding("", "", "refused", error.message)
    place = f"{error.pointer}/{error.keyword}" if error.keyword else error.pointer
    return Finding(place, error.keyword, "refused", error.why)


def _with_refusal(findings: list[Finding], error: InvalidRequest) -> list[Finding]:
    """The findings with what was refused in its place, or last where none stands there."""
    refusal = _refusal(error)
    at = [i for i, finding in enumerate(findings) if finding.pointer == refusal.pointer]
    if not at:
        return [*findings, refusal]
    return [*findings[: at[0]], refusal, *findings[at[0] + 1 :]]


def _finding(pointer: str, keyword: str, value: Any) -> Finding:
    if keyword not in document.KEYWORDS and keyword not in _REWRITTEN:
        return Finding(pointer, keyword, "ignored", "an annotation")
    if keyword == "format" and value not in formats.PATTERNS:
        return Finding(pointer, keyword, "ignored", "an annotation")
    if keyword in _REWRITTEN:
        return Finding(pointer, keyword, "rewritten", _REWRITTEN[keyword])
    if keyword == "additionalProperties" and value in (True, {}):
        return Finding(pointer, keyword, "rewritten", _OPEN)
    return Finding(pointer, keyword, "enforced")


def _keywords(schema: object, pointer: str) -> Iterator[tuple[str, str, Any]]:
    """Every keyword at a place where a schema stands."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        place = f"{pointer}/{keyword}"
        if keyword not in document.CONTAINERS:
            yield place, keyword, value
        for step, inner in document.subschemas(keyword, value):
            yield from _keywords(inner, f"{place}{step}")
