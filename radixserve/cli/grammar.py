"""`radixserve grammar check`: what becomes of a schema.

Owns: its arguments, how a report is printed. Must not know: what schemas mean.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from typing import Any

SUMMARY = "say what of a JSON Schema is enforced, and what is refused"
ACCEPTED, REFUSED, UNREADABLE = range(3)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="check")
    check = verbs.add_parser(
        "check",
        help="report on a schema, keyword by keyword",
        description="Exits with 0 when the schema is accepted, 1 when it is refused, 2 when the "
        "file cannot be read as JSON.",
    )
    check.add_argument("file", metavar="FILE", help="a JSON Schema; - reads standard input")
    check.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    from radixserve.grammar.report import explain

    try:
        schema = _read(arguments.file)
    except (OSError, ValueError, RecursionError) as error:
        print(f"radixserve: cannot read {arguments.file}: {error}", file=sys.stderr)
        return UNREADABLE
    report = explain(schema)
    if arguments.json:
        findings = [dataclasses.asdict(finding) for finding in report.findings]
        print(json.dumps({"accepted": report.accepted, "findings": findings}, indent=2))
    else:
        print(report)
    return ACCEPTED if report.accepted else REFUSED


def _read(file: str) -> Any:
    text = sys.stdin.read() if file == "-" else pathlib.Path(file).read_text(encoding="utf-8")
    return json.loads(text)
