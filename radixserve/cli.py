"""The command line: `radixserve serve`.

Owns: argument parsing and exit codes. Must not know: requests.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from radixserve import __version__, log
from radixserve.api.server import serve
from radixserve.config.flags import add_flags, from_args
from radixserve.config.resolve import resolve
from radixserve.errors import RadixServeError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; exits with 0, 1 (it failed, the reason is on stderr) or 2 (usage)."""
    parser = argparse.ArgumentParser(
        prog="radixserve", description="a prefix-sharing structured-generation runtime"
    )
    parser.add_argument("--version", action="version", version=f"radixserve {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    add_flags(commands.add_parser("serve", help="serve a model over HTTP"))
    parsed = parser.parse_args(arguments)
    log.configure("front")
    try:
        asyncio.run(serve(resolve(from_args(parsed))))
    except RadixServeError as error:
        print(f"radixserve: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
