"""The command line: `radixserve COMMAND`.

Owns: the list of commands, errors on stderr, exit codes. Must not know: what a command does.

A command is a module here: SUMMARY, add_arguments(parser), and run(arguments), which returns the
exit code. It imports what it needs when it runs, so that none waits for what another needs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from radixserve import __version__, log
from radixserve.cli import batch, doctor, grammar, serve
from radixserve.errors import RadixServeError

COMMANDS = {"serve": serve, "batch": batch, "grammar": grammar, "doctor": doctor}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. Exits with its code: 0, 1 (it failed, stderr says why) or 2 (usage)."""
    parser = argparse.ArgumentParser(
        prog="radixserve", description="a prefix-sharing structured-generation runtime"
    )
    parser.add_argument("--version", action="version", version=f"radixserve {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(
            commands.add_parser(name, help=command.SUMMARY, description=command.SUMMARY)
        )
    parsed = parser.parse_args(arguments)
    log.configure("front")
    try:
        code = COMMANDS[parsed.command].run(parsed)
    except RadixServeError as error:
        print(f"radixserve: {error}", file=sys.stderr)
        code = 1
    sys.exit(code)
