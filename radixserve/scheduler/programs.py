"""Programs in the queue: what each of them has had, and the order that follows from it.

Owns: the programs that are remembered, their attained service, and where their calls stand. Must
not know: pages, steps, what a program is for.

What counts for a program is the end of its last call, so the order is one of programs. Calls that
come first are those of

1. programs that have started and of which most is still in the cache: what is begun is finished.
   Among them those go first whose program has had least; that is program-level attained service
   (PLAS) of Autellix (arXiv 2502.13965), in levels that double as there, but from so much on that
   only unusual programs leave the first: programs of one size that are served in turn all end late.
   Within a level the program that came first goes on.
2. no program: most of those are done with one call. The longest cached prefix goes first.
3. programs that have not started. The longest cached prefix goes first.
4. programs that have started and whose beginning was evicted meanwhile. To go on costs them as much
   as a new one costs, and would evict another that is still whole: under pressure it is these that
   wait, so that as many programs are under way as the pool holds.

A call that has been passed by max_overtakes later ones goes before all of these, by arrival. The
level of a call is that of the moment when it comes, and the same for all branches of a fork, so
that other programs never stand between them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from operator import attrgetter

from radixserve.cache.retention import Owner
from radixserve.scheduler.request import Request
from radixserve.scheduler.standing import Standing
from radixserve.wire.messages import Generate

DECODE_WEIGHT = 4
"""Prompt tokens that take a step about as much time as one decoded token."""

_AGED, _GOES_ON, _ALONE, _NEW, _EVICTED = range(4, -1, -1)


class Programs:
    """most: programs without a call here that are remembered."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._here: dict[Owner, Standing] = {}
        self._idle: OrderedDict[Owner, Standing] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """Programs that are remembered."""
        return len(self._here) + len(self._idle)

    def arrived(self, request: Request) -> None:
        """A call has come to the queue."""
        owner, ref = owner_of(request.message), request.message.program
        if owner is None or ref is None:
            return
        standing = self._here.get(owner) or self._idle.pop(owner, None)
        if standing is None:
            standing = Standing(owner, self._count)
            self._count += 1
        self._here[owner] = standing
        standing.here += 1
        standing.has_ended = False
        request.standing, request.level = standing, standing.level_of(ref.parent)

    def admitted(self, request: Request) -> None:
        if request.standing is not None:
            request.standing.has_started = True

    def left(self, request: Request) -> None:
        """A call has ended, however."""
        standing = request.standing
        if standing is None:
            return
        standing.service += request.computed_tokens + DECODE_WEIGHT * len(request.output)
        standing.here -= 1
        if standing.here:
            return
        del self._here[standing.owner]
        if standing.has_ended:
            return
        self._idle[standing.owner] = standing
        while len(self._idle) > self._most:
            self._idle.popitem(last=False)

    def ended(self, owner: Owner) -> None:
        """The program makes no more calls: forget it when those that are here have ended."""
        self._idle.pop(owner, None)
        if owner in self._here:
            self._here[owner].has_ended = True


def owner_of(message: Generate) -> Owner | None:
    """The program of a request; None for one that belongs to none."""
    return None if message.program is None else (message.namespace, message.program.id)


def order_by_program(
    waiting: Iterable[Request], max_overtakes: int, matched: Callable[[Request], int]
) -> list[Request]:
    """waiting in the order to admit it; matched gives a request's cached tokens, at most 2**31."""
    by_arrival = sorted(waiting, key=attrgetter("arrival"))
    firsts: dict[Standing, int] = {}
    ranks = [
        (request.message.priority << 96) + _rank(request, max_overtakes, matched, firsts)
        for request in by_arrival
    ]
    # Turned round, a sort still leaves what is equal as it was: by arrival.
    places = sorted(range(len(ranks)), key=ranks.__getitem__, reverse=True)
    return [by_arrival[place] for place in places]


def _rank(
    request: Request,
    max_overtakes: int,
    matched: Callable[[Request], int],
    firsts: dict[Standing, int],
) -> int:
    """More goes first: class, then what orders the class.

    firsts: cached tokens of new programs' first calls, which count for all their calls, lest other
    programs stand between them.
    """
    if request.overtaken >= max_overtakes:
        return _AGED << 88
    found, standing = matched(request), request.standing
    if standing is None:
        return (_ALONE << 88) + found
    if not standing.has_started:
        return (_NEW << 88) + (firsts.setdefault(standing, found) << 48) - standing.number
    kind = _GOES_ON if 2 * found >= request.known_len else _EVICTED
    return (kind << 88) - (request.level << 80) - (standing.number << 32) + found
