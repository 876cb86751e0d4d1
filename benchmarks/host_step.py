"""Time the host work of a decode step: plan, apply and encode, with nothing computed.

    python -m benchmarks.host_step

The scheduler and the cache are the real ones; the executor's answer is made up and not timed.
Requests have prompts of 256 tokens of their own and decode side by side. Times are microseconds a
step: medians over the steps of a round, then over the rounds. Steps in which some requests enter a
new page are in it as they come.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time
from collections.abc import Sequence

import numpy as np

from radixserve.cache.prefix import PrefixCache
from radixserve.config.schema import ScheduleConfig
from radixserve.ints import ceil_div
from radixserve.plan import Output, StepPlan, StepResult
from radixserve.scheduler.scheduler import Scheduler
from radixserve.wire import codec
from radixserve.wire.messages import Generate
from radixserve.wire.params import SamplingParams

PROMPT = 256
PAGE = 16
VOCAB = 49_152
STAGES = ("plan", "apply", "encode")


def make_scheduler(rows: int, tokens: int) -> Scheduler:
    """A scheduler with `rows` requests waiting, each for so many output tokens."""
    pages = rows * ceil_div(PROMPT + tokens, PAGE)
    scheduler = Scheduler(
        ScheduleConfig(max_running=rows),
        PrefixCache(pages, PAGE),
        context_len=PROMPT + tokens,
        vocab_size=VOCAB,
        stop_ids=(0,),
        token_bytes=[b"x"] * VOCAB,
    )
    ids = np.random.default_rng(0).integers(1, VOCAB, size=(rows, PROMPT), dtype=np.int32)
    params = SamplingParams(max_new_tokens=tokens, temperature=0.0, ignore_eos=True, seed=0)
    for row in range(rows):
        scheduler.handle(Generate(rid=f"r{row}", prompt=ids[row].tobytes(), params=params))
    return scheduler


def answer(plan: StepPlan) -> StepResult:
    """Every sampling row draws the token 7."""
    rows = np.flatnonzero(plan.outputs == Output.SAMPLE).astype(np.int32)
    return StepResult(step=plan.step, rows=rows, ids=np.full(len(rows), 7, np.int32))


def step(scheduler: Scheduler) -> tuple[StepPlan, list[int]]:
    """One step, and the nanoseconds of each stage."""
    t0 = time.perf_counter_ns()
    plan = scheduler.plan()
    t1 = time.perf_counter_ns()
    assert plan is not None
    result = answer(plan)
    t2 = time.perf_counter_ns()
    events = scheduler.apply(result)
    t3 = time.perf_counter_ns()
    codec.encode(events)
    t4 = time.perf_counter_ns()
    return plan, [t1 - t0, t3 - t2, t4 - t3]


def measure(rows: int, steps: int) -> dict[str, float]:
    """Microseconds of each stage, and of all: medians over the steps."""
    scheduler = make_scheduler(rows, steps + ceil_div(rows * PROMPT, PAGE) + 8)
    plan, _ = step(scheduler)
    while plan.tokens != rows:  # until the prompts are computed and every row decodes
        plan, _ = step(scheduler)
    times = []
    for _ in range(steps):
        plan, spent = step(scheduler)
        assert plan.rows == plan.tokens == rows
        times.append([*spent, sum(spent)])
    return {
        stage: statistics.median(column) / 1000
        for stage, column in zip((*STAGES, "all"), zip(*times))
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, metavar="N", help="5, or 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write name: value")
    options = parser.parse_args(arguments)
    rounds, steps = options.rounds or (2 if options.quick else 5), 20 if options.quick else 200
    out: dict[str, float] = {"rounds": rounds}
    print(f"{'rows':>6}" + "".join(f"{name:>10}" for name in (*STAGES, "all", "spread")))
    for rows in (8, 64, 256):
        measured = [measure(rows, steps) for _ in range(rounds)]
        middle = {name: statistics.median(one[name] for one in measured) for name in measured[0]}
        spread = (max(m["all"] for m in measured) - min(m["all"] for m in measured)) / middle["all"]
        print(f"{rows:>6}" + "".join(f"{us:>10.1f}" for us in middle.values()) + f"{spread:>10.0%}")
        out |= {f"rows_{rows}.{name}_us": round(us, 2) for name, us in middle.items()}
        out[f"rows_{rows}.spread"] = round(spread, 4)
    if options.json:
        options.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
