"""Explains what becomes of a schema, keyword by keyword.

Owns: the words of the report. Must not know: how any of it is done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from radixserve.errors import InvalidRequest
from radixserve.grammar import check, document, formats
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
    "additionalProperties": "true generates declared properties only, unless there are none",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """pointer: where the keyword stands, or "" for the whole schema."""

    pointer: str
    keyword: str
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    findings: tuple[Finding, ...]

    @property
    def accepted(self) -> bool:
        return all(finding.verdict != "refused" for finding in self.findings)


def explain(schema: object) -> Report:
    """What each keyword of `schema` comes to; the first refusal ends the schema."""
    findings: list[Finding] = []
    try:
        text = json.dumps(schema, ensure_ascii=False)
        findings += [_finding(*place) for place in _keywords(schema, "")]
        check.check(Constraint(kind="json_schema", value=text))
    except InvalidRequest as error:
        findings.append(Finding("", "", "refused", error.message))
    except RecursionError:
        findings = [Finding("", "", "refused", "nested too deeply")]
    return Report(tuple(findings))


def _finding(pointer: str, keyword: str, value: Any) -> Finding:
    if keyword not in document.KEYWORDS and keyword not in _REWRITTEN:
        return Finding(pointer, keyword, "ignored", "an annotation")
    if keyword == "format" and value not in formats.PATTERNS:
        return Finding(pointer, keyword, "ignored", "an annotation")
    if keyword in _REWRITTEN:
        return Finding(pointer, keyword, "rewritten", _REWRITTEN[keyword])
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
