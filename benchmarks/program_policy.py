"""Completion times of programs under the three policies of the queue, on a simulated clock.

    python -m benchmarks.program_policy [--quick] [--programs N] [--rounds N] [--json FILE]
    python -m benchmarks.program_policy --model smollm2 --programs 60 --rounds 1

Scheduler and cache are the real ones. The executor is made up: a step takes the seconds that
SmolLM2-135M takes on two cores (COST), and outputs are random ids. So a run is exact, the same for
the same seed, and takes a hundredth of the time. Programs (see agents.py) come at random while the
engine is loaded: agents that wait for tools between their calls, trees of thought, single calls of
no program. With --model the same programs are served by servers of that model, on the real clock
(some minutes a side and round). Two scenes: slots are short (8 rows, a pool that holds everything),
and pages are short (16 rows, a pool of a fraction of what is under way).

Shown are the mean and the 99th percentile of the time from a program's first call to the end of its
last, without the tools' time; the longest that any call waited for its last token; and the prompt
tokens computed. Ratios are to lpm, medians over the rounds; each round has other programs.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import pathlib
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from benchmarks.agent_clients import run_served
from benchmarks.agents import VOCAB, Agent, Arrival, Ids, Turn, arrivals
from radixserve.cache.prefix import PrefixCache
from radixserve.config.schema import CacheConfig, ScheduleConfig
from radixserve.plan import Output, StepPlan, StepResult
from radixserve.scheduler.scheduler import Scheduler
from radixserve.wire.messages import Finished, FromEngine, Generate, ProgramRef, TokenOut
from radixserve.wire.params import SamplingParams

COST = (0.012, 0.0019, 0.0007)
"""Seconds of a step, of a decode row in it, of a prompt token in it."""

PAGE = 16
CONTEXT = 8192
TOKEN_BYTES = [b"x"] * VOCAB
SIDES = ("lpm", "fcfs", "program", "program, nothing kept")


@dataclass(frozen=True, slots=True)
class Scene:
    """rate: programs a second. pool: tokens. rows: requests that run at once."""

    name: str
    rate: float
    pool: int
    rows: int


SCENES = (Scene("slots are short", 1.4, 131_072, 8), Scene("pages are short", 1.0, 16_384, 16))


@dataclass(slots=True)
class Program:
    """One that has come. call: the name of its last; outputs: of the turn under way."""

    arrival: Arrival
    turns: int = 0
    call: str = ""
    pauses: float = 0.0
    outputs: dict[str, Ids] = field(default_factory=dict)
    left: int = 0

    @property
    def agent(self) -> Agent:
        return self.arrival.agent


@dataclass(slots=True)
class Times:
    """seconds: of each program, by name. wait: the longest of a call. computed: prompt tokens."""

    seconds: dict[str, float] = field(default_factory=dict)
    wait: float = 0.0
    computed: int = 0

    def mean(self) -> float:
        return statistics.mean(self.seconds.values())

    def p99(self) -> float:
        return sorted(self.seconds.values())[int(len(self.seconds) * 0.99)]


class Simulation:
    """One scene under one policy. now: simulated seconds."""

    def __init__(self, scene: Scene, side: str, programs: Sequence[Arrival]) -> None:
        policy, _, rest = side.partition(",")
        self.now = 0.0
        self.times = Times()
        cache = PrefixCache(scene.pool // PAGE, PAGE)
        if policy == "program" and not rest:
            defaults = CacheConfig()
            cache.keep_for_programs(
                defaults.program_share, defaults.program_seconds, lambda: self.now
            )
        self._scheduler = Scheduler(
            ScheduleConfig(policy=policy, max_running=scene.rows, max_waiting=1_000_000),  # type: ignore[arg-type]
            cache,
            context_len=CONTEXT,
            vocab_size=VOCAB,
            stop_ids=(0,),
            token_bytes=TOKEN_BYTES,
        )
        self._rng = random.Random("outputs")
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._calls: dict[str, tuple[Program, float]] = {}
        for arrival in programs:
            self._at(arrival.at, partial(self._begin, Program(arrival)))

    def run(self) -> Times:
        """Until every program has ended."""
        while self._events or not self._scheduler.idle:
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            plan = self._scheduler.plan()
            if plan is None:
                self.now = max(self.now, self._events[0][0])
                continue
            self.now += seconds_of(plan)
            for event in self._scheduler.apply(self._answer(plan)):
                self._hear(event)
        return self.times

    def _answer(self, plan: StepPlan) -> StepResult:
        rows = np.flatnonzero(plan.outputs == Output.SAMPLE).astype(np.int32)
        ids = np.asarray([self._rng.randrange(1, VOCAB) for _ in rows], np.int32)
        return StepResult(step=plan.step, rows=rows, ids=ids)

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def _begin(self, program: Program) -> None:
        self._ask(program, next(program.agent))

    def _ask(self, program: Program, turn: Turn) -> None:
        program.pauses += turn.pause
        self._at(self.now + turn.pause, partial(self._submit, program, turn))

    def _submit(self, program: Program, turn: Turn) -> None:
        name, parent, size = program.arrival.name, program.call, len(turn.asks)
        program.outputs, program.left = {}, size
        for call, (prompt, tokens) in zip(turn.names(program.turns), turn.asks):
            program.call = call
            rid = f"{name}-{program.call}"
            program.outputs[rid] = []
            self._calls[rid] = program, self.now
            ref = None
            if program.arrival.kind != "single":
                ref = ProgramRef(name, program.call, parent, size)
            params = SamplingParams(max_new_tokens=tokens, ignore_eos=True, seed=0)
            key = np.asarray(prompt, np.int32).tobytes()
            message = Generate(rid=rid, prompt=key, params=params, program=ref)
            for event in self._scheduler.handle(message):
                self._hear(event)
        program.turns += 1

    def _hear(self, event: FromEngine) -> None:
        if isinstance(event, TokenOut):
            program, _ = self._calls[event.rid]
            program.outputs[event.rid] += event.ids
        elif isinstance(event, Finished):
            assert not event.code, event.message
            program, began = self._calls.pop(event.rid)
            self.times.wait = max(self.times.wait, self.now - began)
            self.times.computed += event.computed_tokens
            program.left -= 1
            if not program.left:
                self._go_on(program)

    def _go_on(self, program: Program) -> None:
        try:
            turn = program.agent.send(list(program.outputs.values()))
        except StopIteration:
            arrival = program.arrival
            self.times.seconds[arrival.name] = self.now - arrival.at - program.pauses
            self._scheduler.end_program(("", arrival.name))
        else:
            self._ask(program, turn)


def run_side(scene: Scene, side: str, came: Sequence[Arrival], model: str | None) -> Times:
    if model is None:
        return Simulation(scene, side, came).run()
    policy, _, rest = side.partition(",")
    flags = ["--policy", policy, "--max-running", str(scene.rows)]
    flags += ["--program-share", "0"] if rest else []
    served = run_served(model, scene.pool, flags, came)
    return Times(served.seconds, served.wait, served.computed)


def seconds_of(plan: StepPlan) -> float:
    decoding = int(np.count_nonzero(plan.lengths == 1))
    step, row, token = COST
    return step + row * decoding + token * (plan.tokens - decoding)


def measure(
    scene: Scene, programs: int, rounds: int, seed: int, model: str | None
) -> dict[str, list[Times]]:
    """Each side's times, round by round; in one round all sides get the same programs."""
    found: dict[str, list[Times]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES:
            came = arrivals(programs, scene.rate, seed + number)
            found[side].append(run_side(scene, side, came, model))
    return found


def figures_of(found: dict[str, list[Times]]) -> dict[str, dict[str, float]]:
    """Medians over the rounds; ratios are of the first side's to each side's, more is faster."""
    first = next(iter(found.values()))
    table = {}
    for side, rounds in found.items():
        pairs = list(zip(first, rounds))
        table[side] = {
            "mean_s": statistics.median(each.mean() for each in rounds),
            "p99_s": statistics.median(each.p99() for each in rounds),
            "longest_call_s": max(each.wait for each in rounds),
            "computed_tokens": statistics.median(each.computed for each in rounds),
            "mean_ratio": statistics.median(a.mean() / b.mean() for a, b in pairs),
            "p99_ratio": statistics.median(a.p99() / b.p99() for a, b in pairs),
        }
    return table


def show(table: dict[str, dict[str, float]]) -> None:
    for side, row in table.items():
        print(
            f"{side:<24}{row['mean_s']:>9.1f}{row['p99_s']:>9.1f}{row['longest_call_s']:>9.1f}"
            f"{row['computed_tokens'] / 1000:>9.0f}k{row['mean_ratio']:>8.2f}x"
            f"{row['p99_ratio']:>7.2f}x",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--programs", type=int, metavar="N", help="200, or 30 with --quick")
    parser.add_argument("--rounds", type=int, metavar="N", help="5, or 1 with --quick")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", help="serve this model instead of simulating one")
    names = [scene.name.split()[0] for scene in SCENES]
    parser.add_argument("--scene", choices=names, help="only this one")
    parser.add_argument("--quick", action="store_true", help="few programs")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write name: value")
    options = parser.parse_args(arguments)
    programs = options.programs or (30 if options.quick else 200)
    rounds = options.rounds or (1 if options.quick else 5)
    out: dict[str, float] = {"programs": programs, "rounds": rounds, "seed": options.seed}
    for scene in SCENES:
        if options.scene not in (None, scene.name.split()[0]):
            continue
        print(f"\n{scene.name}: {scene.rate:g} programs/s, {scene.rows} rows, {scene.pool} tokens")
        head = ("mean s", "p99 s", "longest", "computed", "mean", "p99")
        print(f"{'':<24}" + "".join(f"{name:>9}" for name in head))
        found = measure(scene, programs, rounds, options.seed, options.model)
        table = figures_of(found)
        show(table)
        where = scene.name.split()[0]
        for side, row in table.items():
            name = side.replace(", ", "_").replace(" ", "_")
            out |= {f"{where}.{name}.{key}": round(value, 4) for key, value in row.items()}
    if options.json:
        options.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
