"""Programs for benchmarks of scheduling: what each of them asks, and how long it then thinks.

Owns: the shapes of programs, as generators. Must not know: engines, clocks.

A program yields Turns and is sent the outputs of each. All prompts are lists of token ids, drawn
from the seed of the program; programs of one kind share a preamble.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass

VOCAB = 49_152
Ids = list[int]


@dataclass(frozen=True, slots=True)
class Turn:
    """Calls that are made at once. asks: (prompt, output tokens) of each. pause: seconds before."""

    asks: list[tuple[Ids, int]]
    pause: float = 0.0

    def names(self, number: int) -> list[str]:
        """Of its calls, when it is the program's turn `number`."""
        size = len(self.asks)
        return [f"{number}"] if size == 1 else [f"{number}.{i}.0" for i in range(size)]


Agent = Generator[Turn, list[Ids], None]


def words(rng: random.Random, n: int) -> Ids:
    return [rng.randrange(1, VOCAB) for _ in range(n)]


def preamble(name: str, n: int) -> Ids:
    return words(random.Random(name), n)


def react(rng: random.Random, steps: int) -> Agent:
    """A loop of call and tool: each call goes on from all before it."""
    history = preamble(f"react {rng.randrange(4)}", 512) + words(rng, 64)
    for step in range(steps):
        pause = rng.uniform(0.2, 2.0) if step else 0.0
        (output,) = yield Turn([(history, rng.randint(16, 48))], pause)
        history = history + output + words(rng, rng.randint(32, 128))


def tree(rng: random.Random) -> Agent:
    """Three levels of four branches each; the two best of a level go on."""
    level = [preamble("tree", 256) + words(rng, 96)]
    for _ in range(3):
        thoughts = [root + words(rng, 12) for root in level for _ in range(4)]
        outputs = yield Turn([(thought, 24) for thought in thoughts], 0.02)
        grown = [thought + output for thought, output in zip(thoughts, outputs)]
        level = rng.sample(grown, 2)


def single(rng: random.Random) -> Agent:
    """One call of nobody's program."""
    prompt = preamble("single", 128) + words(rng, rng.randint(32, 512))
    yield Turn([(prompt, rng.randint(16, 96))])


KINDS: dict[str, tuple[float, Callable[[random.Random], Agent]]] = {
    "agent": (5.0, lambda rng: react(rng, rng.randint(3, 8))),
    "long agent": (1.0, lambda rng: react(rng, 25)),
    "tree": (1.0, tree),
    "single": (3.0, single),
}
"""How often each kind comes, and how it is made."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A program that comes at `at` seconds."""

    at: float
    name: str
    kind: str
    agent: Agent


def arrivals(count: int, rate: float, seed: int) -> list[Arrival]:
    """`count` programs, `rate` of them a second on average, always the same for the same seed."""
    clock, at, found = random.Random(f"arrivals {seed}"), 0.0, []
    for number in range(count):
        rng = random.Random(f"program {seed} {number}")
        kind = rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
        at += clock.expovariate(rate)
        found.append(Arrival(at, f"p{number}", kind, KINDS[kind][1](rng)))
    return found
