"""Programs: interpreted, compiled, written for the openai client, and without the prefix cache.

    python -m benchmarks.programs [--quick] [--rounds N] [--only NAMES] [--json FILE]

Starts two servers of one model, one of them without its cache, and runs the seven programs of
program_suite.py. Sides: `client` (openai and asyncio), `interpreted` and `compiled` (the language
over HTTP, see f.compile), `no cache` (interpreted, on the other server). Every side serves the same
items, 64 at once, which is the client's best of 16, 32 and 64 (README.md; --at-once tries others);
rounds are interleaved, the side that begins changes, each round has texts of its own and begins
with an empty cache. Shown are medians: seconds, requests sent, steps of the engine,
prompt tokens computed and found in the cache, and how many times as fast as the client a side is
(the median of the rounds' ratios). "same" is the share of texts that equal the client's: in
bfloat16 near ties may part. "below" stands where the compiled side misses its goal.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

import radixserve as rs
from benchmarks.program_suite import WORKLOADS, Client, Item, Message, Workload
from benchmarks.serving.launch import served
from benchmarks.serving.prose import Prose

AT_ONCE = 64
DRIFT = 0.15
HEAD = f"{'':25}{'seconds':>8}{'speed':>9}{'requests':>9}{'steps':>7}{'computed':>10}" + "".join(
    f"{name:>{width}}" for name, width in (("cached", 9), ("prompt", 9), ("output", 9), ("same", 7))
)
PROBES = 2  # requests of a measurement's own that the server has counted
SIDES = ("client", "interpreted", "compiled", "no cache")
COUNTED = ("prompt_tokens", "cached_tokens", "computed_tokens", "generated_tokens", "steps")
Told = list[list[str]]
Words = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Run:
    """counts: of the server, by the names of COUNTED, and requests. told: texts of each item."""

    seconds: float
    counts: dict[str, int]
    told: Told


class Server:
    """A server of our own, and every way of asking it."""

    def __init__(self, url: str, at_once: int) -> None:
        self.url = url
        self._at_once = at_once
        self._plain = httpx.Client(base_url=url, timeout=600)
        self._backend = rs.RuntimeEndpoint(url)
        self._loop = asyncio.new_event_loop()
        self._openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    def close(self) -> None:
        self._loop.run_until_complete(self._openai.close())
        self._loop.close()
        self._backend.close()
        self._plain.close()

    def measure(self, work: Callable[[], Told]) -> Run:
        """`work` on an empty cache."""
        self._plain.post("/flush_cache").raise_for_status()
        before, began = self._counts(), time.perf_counter()
        told = work()
        seconds, after = time.perf_counter() - began, self._counts()
        counts = {name: after[name] - before[name] for name in after}
        counts["requests"] -= PROBES
        return Run(seconds, counts, told)

    def by_language(self, program: Any, workload: Workload, items: list[Item]) -> Told:
        states = program.run_batch(items, backend=self._backend, num_threads=self._at_once)
        return [[state[name] for name in workload.names] for state in states]

    def by_client(self, workload: Workload, items: list[Item]) -> Told:
        told = self._loop.run_until_complete(self._gathered(workload.client, items))
        size = len(workload.names)
        return [texts if len(texts) == size else [texts[0], texts[-1]][:size] for texts in told]

    async def _gathered(self, client: Client, items: list[Item]) -> Told:
        places = asyncio.Semaphore(self._at_once)

        async def one(item: Item) -> list[str]:
            async with places:
                return await client(self._ask, **item)

        return await asyncio.gather(*map(one, items))

    async def _ask(
        self, messages: list[Message], tokens: int, bound: dict[str, Any] | None = None
    ) -> str:
        more: dict[str, Any] = bound or {"extra_body": {"min_tokens": tokens}}
        reply = await self._openai.chat.completions.create(
            model="m",
            messages=messages,  # type: ignore[arg-type]
            max_tokens=tokens,
            temperature=0,
            **more,
        )
        return reply.choices[0].message.content or ""

    def _counts(self) -> dict[str, int]:
        info = self._plain.get("/get_server_info").json()
        counts = {name: int(info[name]) for name in COUNTED}
        return counts | {"requests": requests_of(self._plain.get("/metrics").text)}


def requests_of(metrics: str) -> int:
    """Answered requests that made outputs: those of a program are one."""
    lines = (line for line in metrics.splitlines() if "_http_responses_total{" in line)
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


@dataclass(slots=True)
class Table:
    """The runs of one workload, by side."""

    workload: Workload
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def figures(self) -> dict[str, dict[str, float]]:
        return {side: self._of(runs) for side, runs in self.runs.items()}

    def _of(self, runs: list[Run]) -> dict[str, float]:
        seconds = [run.seconds for run in runs]
        pairs = list(zip(self.runs["client"], runs))
        return {
            "seconds": statistics.median(seconds),
            "ratio": statistics.median(client.seconds / run.seconds for client, run in pairs),
            "spread": (max(seconds) - min(seconds)) / statistics.median(seconds),
            "same": statistics.mean(
                ours == theirs
                for client, run in pairs
                for mine, other in zip(run.told, client.told)
                for ours, theirs in zip(mine, other)
            ),
            **{
                name: statistics.median(run.counts[name] for run in runs) for name in runs[0].counts
            },
        }


def measure(
    workload: Workload, cached: Server, uncached: Server, options: argparse.Namespace
) -> Table:
    """One round warms up and is not counted: connections, the grammar, the tokenizer."""
    table = Table(workload)
    compiled = workload.program.compile()
    rounds = options.rounds or (1 if options.quick else 3)
    for number in range(rounds + 1):
        prose = Prose(str.split, f"{workload.name} {options.seed} {number}")  # type: ignore[arg-type]
        items = workload.items(prose, options.quick or not number)
        sides = [side for side in SIDES if side in options.sides]
        at = number % len(sides)
        for side in (*sides[at:], *sides[:at]):
            run = run_side(side, workload, compiled, items, cached, uncached)
            if number:
                table.runs.setdefault(side, []).append(run)
    table.runs = {side: table.runs[side] for side in sides}
    return table


def run_side(
    side: str,
    workload: Workload,
    compiled: Any,
    items: list[Item],
    cached: Server,
    uncached: Server,
) -> Run:
    match side:
        case "client":
            return cached.measure(lambda: cached.by_client(workload, items))
        case "interpreted":
            return cached.measure(lambda: cached.by_language(workload.program, workload, items))
        case "compiled":
            return cached.measure(lambda: cached.by_language(compiled, workload, items))
        case _:
            return uncached.measure(lambda: uncached.by_language(workload.program, workload, items))


def show(table: Table) -> dict[str, dict[str, float]]:
    figures = table.figures()
    for side, row in figures.items():
        note = "  inconclusive" if row["spread"] > DRIFT else ""
        if side == "compiled" and row["ratio"] < table.workload.goal:
            note += f"  below {table.workload.goal:g}x"
        print(
            f"{table.workload.name:<12}{side:<13}{row['seconds']:>8.2f}{row['ratio']:>8.2f}x"
            f"{row['requests']:>9.0f}{row['steps']:>7.0f}{row['computed_tokens']:>10.0f}{row['cached_tokens']:>9.0f}"
            f"{row['prompt_tokens']:>9.0f}{row['generated_tokens']:>9.0f}{row['same']:>7.0%}{note}",
            flush=True,
        )
    return figures


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--kv-tokens", type=int, default=32_768)
    parser.add_argument("--flags", default="", help="more flags of the servers, in one text")
    parser.add_argument("--only", default=",".join(names), help="workloads, with commas between")
    parser.add_argument("--sides", default=",".join(SIDES), help="the first is what others are to")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, metavar="N", help="programs")
    parser.add_argument("--rounds", type=int, metavar="N", help="3, or 1 with --quick")
    parser.add_argument("--seed", default=str(os.getpid()), help="of the texts")
    parser.add_argument("--quick", action="store_true", help="fewer items, one round")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write name: value")
    options = parser.parse_args(arguments)
    options.only, options.sides = options.only.split(","), options.sides.split(",")
    for given, known in ((options.only, names), (options.sides, list(SIDES))):
        if unknown := set(given) - set(known):
            parser.error(f"{sorted(unknown)} is not among {known}")
    if "client" not in options.sides:
        parser.error("--sides needs client, which the others are compared with")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    flags, out = options.flags.split(), {"seed": options.seed}
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(served(options.model, options.kv_tokens, *flags))]
        urls.append(urls[0])
        if "no cache" in options.sides:
            off = served(options.model, options.kv_tokens, "--no-prefix-cache", *flags)
            urls[1] = stack.enter_context(off)
        servers = (Server(url, options.at_once) for url in urls)
        cached, uncached = (stack.enter_context(contextlib.closing(each)) for each in servers)
        print(HEAD)
        for workload in WORKLOADS:
            if workload.name in options.only:
                for side, row in show(measure(workload, cached, uncached, options)).items():
                    place = f"{workload.name}.{side.replace(' ', '_')}"
                    out |= {f"{place}.{name}": round(value, 4) for name, value in row.items()}
    if options.json:
        options.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
