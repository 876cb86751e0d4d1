"""The order of the waiting queue.

Owns: lpm with ageing, and fcfs. Priority classes stand above either. Must not know: pages, budgets.

lpm: the longest cached prefix first (most tokens saved, and its pages are used before they are
evicted). Ageing: a request that has been passed max_overtakes times by later arrivals goes before
all that have not, in order of arrival; so nobody is overtaken more often than that plus the
requests admitted in the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter

from radixserve.scheduler.request import Request

_AGED = 2**32 - 1  # more than any number of cached tokens


def order(
    waiting: Iterable[Request],
    policy: str,
    max_overtakes: int,
    matched: Callable[[Request], int],
) -> list[Request]:
    """waiting in the order to admit it; matched gives a request's cached tokens, at most 2**31.

    Sorted by plain ints: of thousands of tuples the comparisons alone would take a step's time.
    """
    if policy == "fcfs":
        return sorted(waiting, key=lambda r: (-r.message.priority, r.arrival))

    by_arrival = sorted(waiting, key=attrgetter("arrival"))
    ranks = [
        (r.message.priority << 32) + (_AGED if r.overtaken >= max_overtakes else matched(r))
        for r in by_arrival
    ]
    # Turned round, a sort still leaves what is equal as it was: by arrival.
    places = sorted(range(len(ranks)), key=ranks.__getitem__, reverse=True)
    return [by_arrival[place] for place in places]


def note_overtakes(waiting: Iterable[Request], admitted: Request) -> None:
    """Count, for each earlier arrival of the same or higher priority, that it has been passed."""
    for request in waiting:
        if (
            request.arrival < admitted.arrival
            and request.message.priority >= admitted.message.priority
        ):
            request.overtaken += 1
