"""A server under a steady mixed load for as many steps as an hour has: does its memory grow?

    python -m benchmarks.soak --model smollm2 --seconds 3600
    python -m benchmarks.soak --model SMALL_MODEL            # the same steps in some minutes

Starts a server whose cache holds 64k tokens, keeps calls of all kinds open (streams, whole answers,
clients that leave, aborts, bad requests) over prompts that share their beginnings and soon fill the
cache, and samples the memory of the front and of the engine each second. Ends after --steps steps
of the engine or --seconds, whatever comes first. Exits with 1 where the memory of either grew over
the last half by more than --growth, or where storm.py would find something wrong.

Owns: the load, the samples. Must not know: radixserve's inside; it speaks HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import psutil

from benchmarks.storm import KEYS, TEXT, Storm, check_after, growth, ready, serve, show, watch
from benchmarks.storm_client import Talk

# SmolLM2-135M makes about 30 steps a second with 16 rows on two cores.
HOUR_OF_STEPS = 108_000
LINES = 12
WORDS = TEXT.split()


@dataclass(frozen=True, slots=True)
class Sample:
    """seconds: since the load began. Memory in bytes. cached: tokens in the tree."""

    seconds: float
    steps: int
    front: int
    engine: int
    cached: int


class Load(Storm):
    """Prompts of 20 to 400 words behind one of eight preambles of 200; no poison."""

    def __init__(self, talk: Talk, tokens: int, seed: int) -> None:
        super().__init__(talk, tokens, seed)
        del self.kinds[self._poison]
        words = random.Random(seed)
        self._preambles = [" ".join(words.choices(WORDS, k=200)) for _ in range(8)]

    def _prompt(self) -> str:
        own = " ".join(self._random.choices(WORDS, k=self._random.randrange(20, 400)))
        return f"{self._random.choice(self._preambles)} {own}"


def resident(process: psutil.Process) -> tuple[int, int]:
    """Bytes of the front, and of all its children."""
    children = 0
    for child in process.children(recursive=True):
        try:
            children += child.memory_info().rss
        except psutil.NoSuchProcess:  # a worker that was just replaced
            continue
    return process.memory_info().rss, children


async def sample(talk: Talk, server: psutil.Process, began: float) -> Sample:
    async with talk.get("/server_info", "r") as call:
        info = await call.json()
    front, engine = resident(server)
    cached = info["evictable_tokens"] + info["locked_tokens"]
    return Sample(time.monotonic() - began, info["steps"], front, engine, cached)


async def soak(port: int, pid: int, options: argparse.Namespace) -> tuple[Load, list[Sample]]:
    """The load, and a sample for each second of it."""
    talk, server = Talk("127.0.0.1", port), psutil.Process(pid)
    load = Load(talk, options.tokens, options.seed)
    began = time.monotonic()
    samples = [await sample(talk, server, began)]

    def is_over() -> bool:
        last = samples[-1]
        is_late = time.monotonic() - began >= options.seconds
        return bool(last.steps >= options.steps or is_late)

    async def look() -> None:
        while True:
            await asyncio.sleep(1)
            samples.append(await sample(talk, server, began))

    around = [asyncio.create_task(look()), asyncio.create_task(watch(talk, server, load.report))]
    await asyncio.gather(*(load.client(is_over) for _ in range(options.streams)))
    for task in around:
        task.cancel()
    await asyncio.gather(*around, return_exceptions=True)
    await check_after(talk, load.report)
    return load, samples


def told(samples: Sequence[Sample]) -> dict[str, float]:
    """The table of a run, and its numbers by name."""
    print(f"{'seconds':>9}{'steps':>9}{'front MiB':>11}{'engine MiB':>12}{'cached tokens':>15}")
    stride = max(1, len(samples) // LINES)
    for each in [*samples[::stride], samples[-1]]:
        memory = f"{each.front / 2**20:>11.1f}{each.engine / 2**20:>12.1f}"
        print(f"{each.seconds:>9.0f}{each.steps:>9}{memory}{each.cached:>15}")
    numbers: dict[str, float] = {"seconds": samples[-1].seconds, "steps": samples[-1].steps}
    for side in ("front", "engine"):
        sizes = [getattr(each, side) for each in samples]
        numbers[f"{side}_peak_mib"] = round(max(sizes) / 2**20, 1)
        numbers[f"{side}_growth_mib"] = round(growth(sizes), 2)
    both = max(each.front + each.engine for each in samples)
    numbers["peak_mib"] = round(both / 2**20, 1)
    print(f"peak of both: {numbers['peak_mib']} MiB; over the last half, ", end="")
    print(f"front {numbers['front_growth_mib']:+} MiB, engine {numbers['engine_growth_mib']:+} MiB")
    return numbers


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--steps", type=int, default=HOUR_OF_STEPS, help="end after so many")
    parser.add_argument("--seconds", type=float, default=7200.0, help="end then at the latest")
    parser.add_argument("--streams", type=int, default=16, help="calls at one time")
    parser.add_argument("--tokens", type=int, default=64, help="longest output of a plain call")
    parser.add_argument("--kv-tokens", type=int, default=65536)
    parser.add_argument("--growth", type=float, default=16.0, help="MiB that either may grow by")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="15 seconds; says little of growth")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="numbers and samples")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seconds = 15.0
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    with tempfile.TemporaryDirectory() as folder:
        keys = pathlib.Path(folder) / "keys.json"
        keys.write_text(json.dumps({"keys": KEYS}))
        process, port = serve(options, keys)
        try:
            asyncio.run(ready(port))
            load, samples = asyncio.run(soak(port, process.pid, options))
            process.terminate()
            code = process.wait(30)
        finally:
            process.kill()
    report = load.report
    if code:
        report.wrong.append(f"the server exited with {code}")
    numbers = told(samples)
    for side in ("front", "engine"):
        if not options.quick and numbers[f"{side}_growth_mib"] > options.growth:
            grown = numbers[f"{side}_growth_mib"]
            report.wrong.append(f"the {side} grew by {grown} MiB over the last half")
    show(report)
    if options.json:
        body = numbers | {"samples": [asdict(each) for each in samples], "wrong": report.wrong}
        options.json.write_text(json.dumps(body, indent=1) + "\n")
    sys.exit(1 if report.wrong else 0)


if __name__ == "__main__":
    main()
