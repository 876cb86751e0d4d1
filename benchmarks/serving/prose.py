"""Synthetic English of an exact number of tokens, the same for the same seed.

Owns: the words and how sentences are made of them. Must not know: workloads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

_NOUNS = [
    "river",
    "garden",
    "market",
    "engine",
    "letter",
    "window",
    "teacher",
    "harbour",
    "mountain",
    "kitchen",
    "paper",
    "bridge",
    "forest",
    "station",
    "captain",
    "village",
    "doctor",
    "island",
    "machine",
    "question",
    "winter",
    "summer",
    "morning",
    "evening",
    "library",
    "painter",
    "farmer",
    "signal",
    "valley",
    "castle",
    "journey",
    "teapot",
    "bottle",
    "copper",
    "silver",
    "thunder",
    "shadow",
    "orchard",
    "carpet",
    "candle",
    "basket",
    "hammer",
    "pocket",
    "ribbon",
    "saddle",
    "ticket",
    "tunnel",
    "wagon",
    "anchor",
    "beacon",
    "cellar",
]
_VERBS = [
    "carries",
    "follows",
    "watches",
    "builds",
    "answers",
    "remembers",
    "crosses",
    "repairs",
    "paints",
    "collects",
    "measures",
    "finds",
    "opens",
    "closes",
    "brings",
    "describes",
    "forgets",
    "explains",
    "visits",
    "leaves",
    "holds",
    "turns",
    "moves",
    "counts",
    "lifts",
    "reads",
    "writes",
    "sells",
    "buys",
    "keeps",
]
_ADJECTIVES = [
    "old",
    "quiet",
    "narrow",
    "bright",
    "heavy",
    "distant",
    "gentle",
    "hollow",
    "early",
    "broken",
    "simple",
    "golden",
    "careful",
    "empty",
    "hidden",
    "sudden",
    "patient",
    "curious",
    "wooden",
    "modern",
    "ancient",
    "northern",
    "southern",
    "pale",
    "warm",
    "cold",
    "rough",
    "steady",
    "clever",
    "humble",
]
_JOINTS = ("because", "while", "after", "before", "although", "until", "so that", "whenever")
_PLACES = ("near", "behind", "under", "above", "beside", "inside", "across", "beyond")
_OPENERS = ("Today", "Once", "In the end", "At noon", "Later", "Every year", "Now and then", "Soon")

Encode = Callable[[str], Sequence[int]]


class Prose:
    """encode: text to token ids, without anything put in front. seed: any text."""

    def __init__(self, encode: Encode, seed: str) -> None:
        self._encode = encode
        self._random = random.Random(seed)

    def tokens(self, n: int) -> list[int]:
        """The next n tokens: sentences, cut after the n-th token, the first new one each time."""
        ids: list[int] = []
        while len(ids) < n:
            # A sentence has 15 words or more, and a word is a token or more.
            text = "".join(f" {self._sentence()}" for _ in range(1 + (n - len(ids)) // 15))
            ids += self._encode(text)
        return ids[:n]

    def text(self, n: int) -> str:
        """Sentences of n words or a few more."""
        found: list[str] = []
        while len(found) < n:
            found += self._sentence().split()
        return " ".join(found)

    def shuffled(self, items: Sequence[int]) -> list[int]:
        """The items in a random order."""
        return self._random.sample(items, len(items))

    def _sentence(self) -> str:
        first = f"{self._clause()} {self._one(_JOINTS)} {self._clause()}"
        if self._random.random() < 0.3:
            return f"{self._one(_OPENERS)}, {first}."
        return f"{first[0].upper()}{first[1:]}."

    def _clause(self) -> str:
        place = f" {self._one(_PLACES)} {self._thing()}" if self._random.random() < 0.5 else ""
        return f"{self._thing()} {self._one(_VERBS)} {self._thing()}{place}"

    def _thing(self) -> str:
        article = self._one(("the", "a", "this", "another", "every"))
        if self._random.random() < 0.1:
            return f"{article} {self._one(_NOUNS)} number {self._random.randrange(1000)}"
        return f"{article} {self._one(_ADJECTIVES)} {self._one(_NOUNS)}"

    def _one(self, of: Sequence[str]) -> str:
        return self._random.choice(of)
