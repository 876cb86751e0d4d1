"""`radixserve serve`: the HTTP server.

Owns: its arguments. Must not know: requests.
"""

from __future__ import annotations

import argparse
import asyncio

from radixserve.config.flags import add_flags, from_args

SUMMARY = "serve a model over HTTP"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    from radixserve import log
    from radixserve.api.server import serve
    from radixserve.config.resolve import resolve

    config = from_args(arguments)
    log.configure("front", config.http.log_format)
    asyncio.run(serve(resolve(config)))
    return 0
