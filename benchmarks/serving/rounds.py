"""Rounds of one workload: the servers in turn, each round with prompts of its own.

Owns: A, B, A, B and the warm-up, what the rounds' numbers come to, when they say nothing. Must not
know: HTTP, how results are shown.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .client import Endpoint
from .pause import paused
from .prose import Encode, Prose
from .runner import Run, run
from .workloads import Workload, sharable

MAX_DRIFT = 0.15


@dataclass(frozen=True, slots=True)
class Side:
    """pid: of the server, where it is to stand still while others are measured."""

    endpoint: Endpoint
    pid: int | None = None

    @property
    def name(self) -> str:
        return self.endpoint.name


@dataclass(frozen=True, slots=True)
class Plan:
    """rounds: counted ones, after one that is not. timeout: of a call, in seconds."""

    seed: str
    rounds: int
    is_quick: bool
    timeout: float


@dataclass(frozen=True, slots=True)
class Result:
    """One workload. runs: by side, its counted rounds. prompt_tokens, shared: of one round, all
    prompts together, and what of them need not be computed (rounds differ by next to nothing)."""

    workload: str
    prompt_tokens: int
    shared: int
    runs: dict[str, list[Run]]

    def middle(self, side: str, number: Callable[[Run], float | None]) -> float | None:
        """The median over the rounds; None where a round lacks the number."""
        values = [value for value in map(number, self.runs[side]) if value is not None]
        return statistics.median(values) if len(values) == len(self.runs[side]) else None

    def drift(self, side: str) -> float:
        """From the fastest round to the slowest, as a share of the median: 0.1 for a tenth."""
        spans = [one.makespan for one in self.runs[side]]
        return (max(spans) - min(spans)) / statistics.median(spans)

    def speed(self, side: str, other: str) -> float:
        """How many times as fast as the other: the median of other / side, round by round."""
        pairs = zip(self.runs[other], self.runs[side])
        return statistics.median(theirs.makespan / ours.makespan for theirs, ours in pairs)

    def is_conclusive(self, *sides: str) -> bool:
        """No side's rounds differ by more than 15%, and there is more than one."""
        return all(len(self.runs[s]) > 1 and self.drift(s) <= MAX_DRIFT for s in sides)


def measure(
    name: str, workload: Workload, sides: Sequence[Side], plan: Plan, encode: Encode
) -> Result:
    """Run a workload on all sides. Raises PeerError when one does not do its work.

    Each round has a seed of its own, so nothing that an earlier round left in a cache helps; within
    a round all sides get the same prompts. Round 0 warms up and is not counted.
    """
    runs: dict[str, list[Run]] = {side.name: [] for side in sides}
    prompt_tokens = shared = 0
    for number in range(plan.rounds + 1):
        calls = workload.build(Prose(encode, f"{plan.seed}/{name}/{number}"), plan.is_quick)
        prompt_tokens, shared = sum(len(call.prompt) for call in calls), sharable(calls)
        for side in sides:
            others = [one.pid for one in sides if one is not side and one.pid is not None]
            with paused(others):
                one = asyncio.run(run(side.endpoint, calls, workload.at_once, plan.timeout, shared))
            if number:
                runs[side.name].append(one)
    return Result(name, prompt_tokens, shared, runs)
