"""Requests that come together and begin alike.

Owns: how far the first of them is computed before the others are admitted. Must not know: pages,
steps, programs.

Within a step only whole pages are shared; what an earlier step has computed is shared to the token.
So where many go on alike for some tokens into a page, one of them computes up to the place where
they part, and the others are admitted with the next step, in which it goes on, too. That step costs
no more than what it saves, and a request is held back once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from radixserve.ints import round_down
from radixserve.scheduler.request import Request

WORTH = 24
"""Tokens that all of them save together: a CPU takes a step's time for about half as many."""


@dataclass(frozen=True, slots=True)
class Heads:
    """matched: how many tokens of a request are cached. chunk: tokens that one may compute in a
    step."""

    matched: Callable[[Request], int]
    page_size: int
    chunk: int

    def mark(self, waiting: Sequence[Request], step: int, budget: int) -> None:
        """Hold back, in this step, those that others compute a beginning for; these get the end of
        it as their cut. waiting: those that may be admitted, in order. budget: tokens of the step.

        Example, page_size 16: three requests are the same up to 110 tokens, of which 100 are
        cached. Two of them save 10 each, and if that were WORTH it, the first would be cut at 110.
        If they were the same up to 116, they would save 4 each: [100, 112) end with a page, and
        are shared within a step.
        """
        fit = [request for request in waiting if request.held_in < 0]
        if len(fit) < 2:
            return
        places = {id(request): place for place, request in enumerate(fit)}
        fit.sort(key=lambda request: (request.message.namespace, request.key))
        alike = [_alike(*pair) for pair in pairwise(fit)]
        saved = [self._saved(length, after) for length, after in zip(alike, fit[1:])]
        if sum(saved) < WORTH:
            return
        for first, end in _runs(saved):
            leader = min(range(first, end), key=lambda index: places[id(fit[index])])
            reach = max(alike[max(first, leader - 1) : min(leader + 1, end - 1)])
            if reach - self.matched(fit[leader]) > min(budget, self.chunk):
                continue
            for index in range(first, end):
                fit[index].held_in = step
            fit[leader].held_in, fit[leader].cut = -1, reach

    def _saved(self, alike: int, request: Request) -> int:
        """Tokens of it that are not computed when it waits for the first `alike`."""
        return max(0, alike - max(self.matched(request), round_down(alike, self.page_size)))


def _runs(saved: list[int]) -> Iterable[tuple[int, int]]:
    """(first, end) of the requests between which something is saved."""
    first = 0
    for index, count in enumerate([*saved, 0]):
        if count:
            continue
        if index > first:
            yield first, index + 1
        first = index + 1


def _alike(one: Request, other: Request) -> int:
    """Leading tokens that both have, and that may be cached for either."""
    if one.message.namespace != other.message.namespace:
        return 0
    size = min(_most(one), _most(other))
    if size <= 0:
        return 0
    differs = np.frombuffer(one.key, "<i4", size) != np.frombuffer(other.key, "<i4", size)
    place = int(differs.argmax())
    return place if differs[place] else size


def _most(request: Request) -> int:
    """Tokens of it that may come from the cache."""
    size, limit = len(request.key) // 4 - 1, request.match_limit
    return size if limit is None else min(size, limit)
