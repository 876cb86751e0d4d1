"""`radixserve doctor`: would a server start here, and as what.

Owns: its arguments, how findings are shown, the exit code. Must not know: what is looked at.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from radixserve.config.flags import add_flags, from_args

SUMMARY = "tell what a server would find and choose here, and whether it would start"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object for each finding")
    add_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """0: a server with the same flags would start. 1: it would not."""
    from radixserve.doctor import examine, would_start

    findings = []
    for finding in examine(from_args(arguments)):
        findings.append(finding)
        if arguments.json:
            print(json.dumps(dataclasses.asdict(finding)), flush=True)
        else:
            print(f"{finding.level:5}{finding.topic:18}{finding.said}", flush=True)
    starts = would_start(findings)
    if not arguments.json:
        print("a server would start" if starts else "a server would NOT start: see what is bad")
    return 0 if starts else 1
