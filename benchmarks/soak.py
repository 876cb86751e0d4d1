"""A server under a steady mixed load for as many steps as an hour has: does its memory grow?

    python -m benchmarks.soak --model smollm2 --dtype bfloat16 --seconds 3600
    python -m benchmarks.soak --model SMALL_MODEL            # the same steps in some minutes

Starts a server whose cache holds 64k tokens, keeps calls of all kinds open (streams, whole answers,
answers under a schema, clients that leave, aborts, bad requests) over prompts that share their
beginnings and soon fill the cache, and samples each second the memory of the front, of the engine
and of the processes that compile grammars for it. Ends after --steps steps of the engine or
--seconds, whatever comes first. Exits with 1 where the memory of front or engine grew over the last
half by more than --growth, or where storm.py would find something wrong.

Owns: the load, the samples. Must not know: radixserve's inside; it speaks HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
SCHEMAS = 24
SIDES = ("front", "engine", "workers")
WORDS = TEXT.split()


@dataclass(frozen=True, slots=True)
class Sample:
    """seconds: since the load began. front, engine, workers: memory in bytes; workers compile
    grammars. cached: tokens in the tree."""

    seconds: float
    steps: int
    front: int
    engine: int
    workers: int
    cached: int

    @property
    def memory(self) -> int:
        """Of all three; what they share is counted in each."""
        return self.front + self.engine + self.workers


class Load(Storm):
    """Prompts of 20 to 400 words behind one of eight preambles of 200; answers under one of
    SCHEMAS schemas; no poison."""

    def __init__(self, talk: Talk, tokens: int, seed: int, call_seconds: float = 120.0) -> None:
        super().__init__(talk, tokens, seed, call_seconds)
        del self.kinds[self._poison]
        self.kinds[self._schema] = 10
        words = random.Random(seed)
        self._preambles = [" ".join(words.choices(WORDS, k=200)) for _ in range(8)]

    def _prompt(self) -> str:
        own = " ".join(self._random.choices(WORDS, k=self._random.randrange(20, 400)))
        return f"{self._random.choice(self._preambles)} {own}"

    async def _schema(self) -> str:
        """A chat reply that satisfies a schema."""
        name = {"type": "string", "maxLength": self._random.randrange(1, SCHEMAS + 1)}
        fields = {"name": name, "born": {"type": "integer", "minimum": 1800, "maximum": 2030}}
        schema = {
            "type": "object", "properties": fields, "required": list(fields),
            "additionalProperties": False,
        }  # fmt: skip
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
        body = {
            "messages": [{"role": "user", "content": self._prompt()}],
            "max_tokens": self._tokens, "temperature": 0.8, "response_format": form,
        }  # fmt: skip
        async with self._talk.post("/v1/chat/completions", body, "t") as call:
            reply = await call.json()
        if call.status != 200:
            return self._refused(call, reply)
        self.report.tell(reply["usage"])
        json.loads(reply["choices"][0]["message"]["content"])
        return "whole"


def resident(front: psutil.Process) -> tuple[int, int, int]:
    """Bytes of the front, of its child the engine, and of the engine's children."""
    engines = front.children()
    workers = [each for engine in engines for each in engine.children(recursive=True)]
    return (_bytes([front]), _bytes(engines), _bytes(workers))


def _bytes(processes: Sequence[psutil.Process]) -> int:
    found = 0
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker that was just replaced
            found += each.memory_info().rss
    return found


async def sample(talk: Talk, server: psutil.Process, began: float) -> Sample:
    async with talk.get("/server_info", "r") as call:
        info = await call.json()
    cached = info["evictable_tokens"] + info["locked_tokens"]
    return Sample(time.monotonic() - began, info["steps"], *resident(server), cached)


async def soak(port: int, pid: int, options: argparse.Namespace) -> tuple[Load, list[Sample], int]:
    """The load, a sample for each second of it, and the tokens whose pages were lost."""
    talk, server = Talk("127.0.0.1", port), psutil.Process(pid)
    load = Load(talk, options.tokens, options.seed, options.call_seconds)
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
    lost = await check_after(talk, load.report)
    return load, samples, lost


def told(samples: Sequence[Sample], lost: int) -> dict[str, float]:
    """The table of a run, and its numbers by name. lost: tokens of the KV pool."""
    sides = "".join(f"{side + ' MiB':>13}" for side in SIDES)
    print(f"{'seconds':>9}{'steps':>9}{sides}{'cached tokens':>15}")
    stride = max(1, len(samples) // LINES)
    for each in [*samples[::stride], samples[-1]]:
        memory = "".join(f"{getattr(each, side) / 2**20:>13.1f}" for side in SIDES)
        print(f"{each.seconds:>9.0f}{each.steps:>9}{memory}{each.cached:>15}")
    numbers: dict[str, float] = {
        "seconds": samples[-1].seconds,
        "steps": samples[-1].steps,
        "start_mib": round(samples[0].memory / 2**20, 1),
        "peak_mib": round(max(each.memory for each in samples) / 2**20, 1),
        "lost_tokens": lost,
    }
    for side in SIDES:
        sizes = [getattr(each, side) for each in samples]
        numbers[f"{side}_peak_mib"] = round(max(sizes) / 2**20, 1)
        numbers[f"{side}_growth_mib"] = round(growth(sizes), 2)
    peak, start = numbers["peak_mib"], numbers["start_mib"]
    print(f"memory of all: {start} MiB at first, {peak} MiB at most; over the last half ", end="")
    print(", ".join(f"{side} {numbers[f'{side}_growth_mib']:+} MiB" for side in SIDES))
    print(f"pages lost: those of {lost} tokens")
    return numbers


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="auto", help="of the server's weights and KV pool")
    parser.add_argument("--flags", default="", help="more flags of the server, in one string")
    parser.add_argument("--steps", type=int, default=HOUR_OF_STEPS, help="end after so many")
    parser.add_argument("--seconds", type=float, default=7200.0, help="end then at the latest")
    parser.add_argument("--streams", type=int, default=16, help="calls at one time")
    parser.add_argument("--tokens", type=int, default=64, help="longest output of a plain call")
    parser.add_argument("--kv-tokens", type=int, default=65536)
    parser.add_argument("--call-seconds", type=float, default=120.0, help="a longer call hangs")
    parser.add_argument("--growth", type=float, default=16.0, help="MiB that each may grow by")
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
            load, samples, lost = asyncio.run(soak(port, process.pid, options))
            process.terminate()
            code = process.wait(120)
        finally:
            process.kill()
    report = load.report
    if code:
        report.wrong.append(f"the server exited with {code}")
    numbers = told(samples, lost)
    for side in ("front", "engine"):  # workers are replaced once they have grown
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
