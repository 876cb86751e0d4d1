"""Measure servers that speak the OpenAI dialect beside each other, on workloads W0 to W8.

    python -m benchmarks.peers --a http://127.0.0.1:30000=ours --b http://127.0.0.1:8101=vllm

README.md in this folder says how to start the servers and how to read the table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Sequence

from benchmarks.serving.client import Endpoint, PeerError
from benchmarks.serving.report import flat, table
from benchmarks.serving.rounds import Plan, Result, Side, measure
from benchmarks.serving.runner import find_model
from benchmarks.serving.workloads import W8_NOTE, WORKLOADS
from radixserve.errors import RadixServeError
from radixserve.text.tokenizer import Tokenizer
from radixserve.weights.source import resolve

_LETTERS = "abcd"


def main(arguments: Sequence[str] | None = None) -> None:
    """Exits with 0, 1 (a side failed) or 2 (usage). However it ends, what has been measured by then
    is told."""
    options, names = _parse(arguments)
    # What stands still must go on again, also when this process is asked to end.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    results: list[Result] = []
    try:
        results.extend(_measured(options, names))
    except (PeerError, RadixServeError) as error:
        print(f"peers: {error}", file=sys.stderr)
        sys.exit(1)
    finally:
        _tell(results, options)


def _tell(results: list[Result], options: argparse.Namespace) -> None:
    if results:
        print("\n" + table(results))
    if options.json:
        values = flat(results) | {"seed": options.seed, "rounds": options.rounds}
        options.json.write_text(json.dumps(values, indent=1) + "\n")


def _parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    for letter in _LETTERS:
        is_first = letter == "a"
        parser.add_argument(f"--{letter}", metavar="URL[=NAME]", required=is_first)
        parser.add_argument(f"--pid-{letter}", type=int, metavar="PID", help="for --pause-idle")
    parser.add_argument(
        "--workloads", default="W0,W1,W2,W3,W4,W5,W6,W7", metavar="W0,W1", help="W8 only if named"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="counted rounds (5; quick: 2)")
    parser.add_argument("--quick", action="store_true", help="a small part of each workload")
    parser.add_argument("--seed", help="of the prompts; another one each time if not given")
    parser.add_argument("--model", default="smollm2", help="whose tokenizer makes the prompts")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="of one call")
    parser.add_argument(
        "--pause-idle", action="store_true", help="stop the servers of --pid-* that are not in turn"
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write name: value")
    options = parser.parse_args(arguments)
    names = options.workloads.split(",")
    if unknown := [name for name in names if name not in WORKLOADS]:
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    options.rounds = (2 if options.quick else 5) if options.rounds is None else options.rounds
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    options.seed = options.seed or secrets.token_hex(4)
    try:
        options.sides = _sides(options)
    except ValueError as error:
        parser.error(str(error))
    return options, names


def _sides(options: argparse.Namespace) -> list[Side]:
    """Raises ValueError."""
    sides = []
    for letter in _LETTERS:
        url, pid = getattr(options, letter), getattr(options, f"pid_{letter}")
        if url is None and pid is not None:
            raise ValueError(f"--pid-{letter} without --{letter}")
        if url is None:
            continue
        if options.pause_idle and pid is None:
            raise ValueError(f"--pause-idle needs --pid-{letter}")
        sides.append(Side(Endpoint.parse(url, letter), pid if options.pause_idle else None))
    if len({side.name for side in sides}) < len(sides):
        raise ValueError("two sides have the same name")
    return sides


def _measured(options: argparse.Namespace, names: Sequence[str]) -> Iterator[Result]:
    tokenizer = Tokenizer.load(resolve(options.model))

    def encode(text: str) -> list[int]:
        return [int(token) for token in tokenizer.encode(text, opens=False, special=False)]

    sides = [
        Side(asyncio.run(find_model(side.endpoint, options.timeout)), side.pid)
        for side in options.sides
    ]
    plan = Plan(options.seed, options.rounds, options.quick, options.timeout)
    print(f"seed {plan.seed}, {plan.rounds} rounds after a warm-up, {len(sides)} sides")
    if "W8" in names:
        print(W8_NOTE)
    for name in names:
        start = time.perf_counter()
        yield measure(name, WORKLOADS[name], sides, plan, encode)
        print(f"{name} done in {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
