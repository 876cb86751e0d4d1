"""The order of the waiting queue.

Owns: lpm with ageing, and fcfs. Priority classes stand above either. Must not know: pages, budgets.

lpm: the longest cached prefix first (most tokens saved, and its pages are used before they are
evicted). Ageing: a request that has been passed max_overtakes times by later arrivals goes before
all that have not, in order of arrival; so nobody is overtaken more often than that plus the
requests admitted in the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from radixserve.scheduler.request import Request


def order(
    waiting: Iterable[Request],
    policy: str,
    max_overtakes: int,
    matched: Callable[[Request], int],
) -> list[Request]:
    """waiting in the order to admit it; matched gives a request's cached tokens."""
    if policy == "fcfs":
        return sorted(waiting, key=lambda r: (-r.message.priority, r.arrival))

    def rank(r: Request) -> tuple[int, int, int, int]:
        aged = r.overtaken >= max_overtakes
        return (-r.message.priority, 0 if aged else 1, 0 if aged else -matched(r), r.arrival)

    return sorted(waiting, key=rank)


def note_overtakes(waiting: Iterable[Request], admitted: Request) -> None:
    """Count, for each earlier arrival of the same or higher priority, that it has been passed."""
    for request in waiting:
        if (
            request.arrival < admitted.arrival
            and request.message.priority >= admitted.message.priority
        ):
            request.overtaken += 1
