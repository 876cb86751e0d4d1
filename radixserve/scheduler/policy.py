"""The order of the waiting queue.

Owns: lpm with ageing, and fcfs. Priority classes stand above either. Must not know: pages, budgets.

lpm: the longest cached prefix first (most tokens saved, and its pages are used before they are
evicted). Where pages are short, of those with as much cached the ones come first that most others
go on like: what is computed for them serves most, before it has to make room.

Ageing: a request that has waited longest of its class is passed by later arrivals max_overtakes
times at most, then it goes first. So one that n others of its class have come before is passed at
most (n + 1) * max_overtakes times, and by those admitted in the same step. Counted for every
request instead, a long queue would be one of aged requests alone, in order of arrival, which
computes each prefix again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from operator import attrgetter

from radixserve.scheduler.request import Request

_AGED = 2**48 - 1  # more than any number of cached tokens and of waiting requests behind it
_NEXT = 64  # bytes of the tokens after what is cached, by which those that go on alike are known


def order(
    waiting: Iterable[Request],
    policy: str,
    max_overtakes: int,
    matched: Callable[[Request], int],
    *,
    is_short: bool = False,
) -> list[Request]:
    """waiting in the order to admit it; matched gives a request's cached tokens, at most 2**31.

    is_short: of pages. Sorted by plain ints: of thousands of tuples the comparisons alone would
    take a step's time.
    """
    if policy == "fcfs":
        return sorted(waiting, key=lambda r: (-r.message.priority, r.arrival))

    by_arrival = sorted(waiting, key=attrgetter("arrival"))
    found = [matched(r) for r in by_arrival]
    company = _company(by_arrival, found) if is_short else [0] * len(found)
    ranks = [
        (r.message.priority << 48)
        + (_AGED if r.overtaken >= max_overtakes else (tokens << 16) + others)
        for r, tokens, others in zip(by_arrival, found, company)
    ]
    # Turned round, a sort still leaves what is equal as it was: by arrival.
    places = sorted(range(len(ranks)), key=ranks.__getitem__, reverse=True)
    return [by_arrival[place] for place in places]


def _company(waiting: list[Request], found: list[int]) -> list[int]:
    """How many go on with the same tokens behind what is cached, at most 2**16 - 1."""
    ends = [4 * tokens for tokens in found]
    following = [r.key[end : end + _NEXT] for r, end in zip(waiting, ends)]
    counts = Counter(following)
    return [min(counts[tokens], 2**16 - 1) for tokens in following]


def note_passed(waiting: Iterable[Request], admitted: Request) -> None:
    """Count for those that have waited longest, each in its class, that they have been passed.

    waiting: by arrival.
    """
    classes = set()
    for request in waiting:
        if request.arrival > admitted.arrival:
            return
        priority = request.message.priority
        if priority >= admitted.message.priority and priority not in classes:
            classes.add(priority)
            request.overtaken += 1


def note_overtakes(waiting: Iterable[Request], admitted: Request) -> None:
    """Count, for each earlier arrival of the same or higher priority, that it has been passed."""
    for request in waiting:
        if (
            request.arrival < admitted.arrival
            and request.message.priority >= admitted.message.priority
        ):
            request.overtaken += 1
