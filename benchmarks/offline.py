"""What sharing and batching buy, without a server: the engine beside two baselines in one run.

    python benchmarks/offline.py [--quick] [--rounds N] [--json FILE] [--model smollm2]

Sides: radixserve; radixserve with the cache off; transformers, one prompt at a time. Workloads:
shared-prefix (questions behind one preamble), multi-turn (chats whose history grows), no-sharing,
single-stream, and batching (the same prompts at once and one after another). All sides get the
same token ids and give the same number of tokens, greedily. Rounds are interleaved and each has
prompts of its own, so nothing is cached from the round before. Ratios are of medians; one whose
side varies by more than 15% between rounds is marked inconclusive.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.one_at_a_time import OneAtATime
from radixserve import Engine

Waves = list[list[list[int]]]
DRIFT = 0.15
FIRST_ID, LAST_ID = 1000, 40000  # ordinary words of any vocabulary of this size


@dataclass(frozen=True)
class Workload:
    """make(rng) gives waves of prompts: a wave is sent when the one before it has ended.

    tokens: output length of each. compare: the sides beside radixserve, by name.
    """

    name: str
    make: Callable[[random.Random], Waves]
    tokens: int
    compare: tuple[str, ...] = ("cache off", "transformers")


def words(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(FIRST_ID, LAST_ID) for _ in range(n)]


def shared_prefix(requests: int, prefix: int, suffix: int) -> Callable[[random.Random], Waves]:
    def make(rng: random.Random) -> Waves:
        preamble = words(rng, prefix)
        return [[[*preamble, *words(rng, suffix)] for _ in range(requests)]]

    return make


def multi_turn(chats: int, turns: int, system: int, turn: int) -> Callable[[random.Random], Waves]:
    """Each turn adds a question, and the answer of the turn before (fixed text, equal for all)."""

    def make(rng: random.Random) -> Waves:
        preamble = words(rng, system)
        histories = [[*preamble, *words(rng, turn)] for _ in range(chats)]
        waves = [[list(history) for history in histories]]
        for _ in range(turns - 1):
            histories = [[*history, *words(rng, turn)] for history in histories]
            waves.append([list(history) for history in histories])
        return waves

    return make


def alone(requests: int, length: int) -> Callable[[random.Random], Waves]:
    def make(rng: random.Random) -> Waves:
        return [[words(rng, length) for _ in range(requests)]]

    return make


def workloads(quick: bool) -> list[Workload]:
    if quick:
        return [
            Workload("shared-prefix", shared_prefix(8, 512, 32), 8),
            Workload("multi-turn", multi_turn(4, 3, 192, 64), 8),
            Workload("no-sharing", alone(4, 192), 16),
            Workload("single-stream", alone(1, 64), 32),
            Workload("batching", alone(16, 48), 16, ("one after another",)),
        ]
    return [
        Workload("shared-prefix", shared_prefix(32, 1024, 32), 16),
        Workload("multi-turn", multi_turn(8, 4, 512, 96), 32),
        Workload("no-sharing", alone(16, 512), 32),
        Workload("single-stream", alone(1, 64), 128),
        Workload("batching", alone(16, 64), 64, ("one after another",)),
    ]


class Sides:
    """The engines under test. run() gives seconds for all waves of one side."""

    def __init__(self, model: str, dtype: str) -> None:
        self._on = Engine(model, dtype=dtype, kv_tokens=65536)
        self._off = Engine(model, dtype=dtype, kv_tokens=65536, prefix_cache=False)
        self.dtype = str(self._on.get_server_info()["dtype"])
        self._plain = OneAtATime(model, self.dtype)

    def close(self) -> None:
        self._on.close()
        self._off.close()

    def run(self, side: str, waves: Waves, tokens: int) -> float:
        self._on.flush_cache()
        started = time.perf_counter()
        for wave in waves:
            outputs = self._generate(side, wave, tokens)
            assert all(len(output) == tokens for output in outputs), "lengths differ"
        return time.perf_counter() - started

    def _generate(self, side: str, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        match side:
            case "transformers":
                return self._plain.generate(prompts, tokens)
            case "one after another":
                return [self._ask(self._on, [prompt], tokens)[0] for prompt in prompts]
            case "cache off":
                return self._ask(self._off, prompts, tokens)
            case _:
                return self._ask(self._on, prompts, tokens)

    @staticmethod
    def _ask(engine: Engine, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        replies = engine.generate(
            input_ids=prompts,
            sampling_params={"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
        )
        return [reply["output_ids"] for reply in replies]


def measure(sides: Sides, workload: Workload, rounds: int, seed: int) -> dict[str, list[float]]:
    """Seconds of every round by side; a warm-up with other prompts is not counted."""
    names = ("radixserve", *workload.compare)
    warm_up = [wave[:1] for wave in workload.make(random.Random(seed - 1))[:1]]
    for side in names:
        sides.run(side, warm_up, 2)
    seconds: dict[str, list[float]] = {side: [] for side in names}
    for number in range(rounds):
        waves = workload.make(random.Random(seed + number))
        for side in names:
            seconds[side].append(sides.run(side, waves, workload.tokens))
    return seconds


def drifts(values: list[float]) -> bool:
    return max(values) - min(values) > DRIFT * statistics.median(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=0, help="0: 5, or 1 with --quick")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="small shapes, under a minute")
    parser.add_argument("--json", type=pathlib.Path, help="write name: value pairs here")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    sides = Sides(arguments.model, arguments.dtype)
    figures: dict[str, float | str] = {"rounds": rounds, "dtype": sides.dtype}
    print(f"{arguments.model}, {sides.dtype}, {rounds} rounds; seconds are medians\n")
    print(f"{'workload':<16}{'side':<20}{'seconds':>9}{'ratio':>8}")
    try:
        for workload in workloads(arguments.quick):
            seconds = measure(sides, workload, rounds, arguments.seed * 1000)
            ours = statistics.median(seconds["radixserve"])
            for side, values in seconds.items():
                median = statistics.median(values)
                key = f"{workload.name}.{side}".replace(" ", "_")
                figures[f"{key}.seconds"] = round(median, 4)
                note = ""
                if side != "radixserve":
                    figures[f"{key}.ratio"] = round(median / ours, 3)
                    note = f"{median / ours:>7.2f}x"
                if drifts(values):
                    figures[f"{key}.inconclusive"] = 1
                    note += "  inconclusive"
                print(f"{workload.name:<16}{side:<20}{median:>9.2f}{note}", flush=True)
    finally:
        sides.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
