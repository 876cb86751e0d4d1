"""What a prefix cache should find, by brute force over a list of everything published."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

Tokens = tuple[int, ...]


class Expected(NamedTuple):
    """whole: tokens in whole pages. part: tokens to copy behind them; at most that many, where
    is_certain is False because the step now being planned has published a page that competes."""

    whole: int
    part: int
    is_certain: bool

    def allows(self, matched: int) -> bool:
        part = matched - self.whole
        return part == self.part or (not self.is_certain and 0 <= part <= self.part)


@dataclass
class Published:
    """step: the one now being planned. prefixes: namespace and tokens -> step of publication."""

    page_size: int
    step: int = 0
    prefixes: dict[tuple[str, Tokens], int] = field(default_factory=dict)

    def pages(self, namespace: str, tokens: Tokens, had: int, end: int, written: int) -> int:
        """A request that has published `had` pages publishes whole pages up to token `end`.

        Returns how many it has then: a page still to be written that is there already ends it.
        """
        size = self.page_size
        while had < end // size:
            prefix = (namespace, tokens[: (had + 1) * size])
            if prefix in self.prefixes and had >= written // size:
                break
            self.prefixes.setdefault(prefix, self.step)
            had += 1
        return had

    def tail(self, namespace: str, tokens: Tokens) -> None:
        """The tokens end inside a page, and that part of it is published."""
        self.prefixes.setdefault((namespace, tokens), self.step)

    def expected(self, namespace: str, tokens: Tokens) -> Expected:
        whole, size = 0, self.page_size
        while whole + size <= len(tokens) and (namespace, tokens[: whole + size]) in self.prefixes:
            whole += size
        best, is_certain = 0, True
        for (other, prefix), step in self.prefixes.items():
            part = common(prefix[: whole + size], tokens) - whole
            if other != namespace or part <= 0:
                continue
            if step < self.step:
                best = max(best, part)
            else:
                is_certain = False
        return Expected(whole, best, is_certain)


def common(a: Tokens, b: Tokens) -> int:
    """Leading tokens that a and b have in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
