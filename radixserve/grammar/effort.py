"""How much work the reading of a constraint may be.

Owns: the count of steps of a thread, and its limits. Must not know: what the steps are, who waits
for them.

A step is about a microsecond of Python. Whoever loops says how many it has taken; where a limit is
passed, the work under way ends with Exhausted. The same work takes the same steps wherever it is
done, whatever has been kept from before.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Exhausted(Exception):
    """The steps of `meter` are used up. Not an error of what is read: whoever has set the limit
    knows what it means."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(f"more than {meter.limit} steps")
        self.meter = meter


class Meter:
    """limit: of the steps inside. spent: so far. owner: whose limit it is that is passed first."""

    __slots__ = ("limit", "owner", "spent")

    def __init__(self, limit: int, owner: Meter | None) -> None:
        self.limit = limit
        self.owner = owner or self
        self.spent = 0


class _Thread(threading.local):
    meter: Meter | None = None


_thread = _Thread()


def spend(steps: int) -> None:
    """Count `steps` of this thread; nothing where no limit is set. Raises Exhausted."""
    meter = _thread.meter
    if meter is not None:
        meter.spent += steps
        if meter.spent > meter.limit:
            raise Exhausted(meter.owner)


@contextlib.contextmanager
def limited(steps: int) -> Iterator[Meter]:
    """No more than `steps` inside, of those that are left outside. Raises Exhausted, with this
    meter where it is this limit that was passed."""
    outer = _thread.meter
    left = steps if outer is None else outer.limit - outer.spent
    meter = Meter(min(steps, left), None if outer is None or steps < left else outer.owner)
    _thread.meter = meter
    try:
        yield meter
    finally:
        _thread.meter = outer
        if outer is not None:
            outer.spent += meter.spent


@contextlib.contextmanager
def apart() -> Iterator[Meter]:
    """What is spent inside is limited but not counted outside, unless it fails: for what is kept,
    whose steps are spent by each who asks for it."""
    outer = _thread.meter
    before = 0 if outer is None else outer.spent
    left = _NO_LIMIT if outer is None else outer.limit
    with limited(left) as meter:
        yield meter
    if outer is not None:
        outer.spent = before


_NO_LIMIT = 2**62
