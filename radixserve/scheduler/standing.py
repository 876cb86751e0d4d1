"""What is remembered of one program.

Owns: its attained service, and the level that a call of it has. Must not know: requests, the queue.
"""

from __future__ import annotations

from radixserve.cache.retention import Owner

FIRST_LEVEL = 16_384
"""Service up to which programs are in the first level."""

LEVELS = 16


class Standing:
    """What is remembered of one program.

    number: programs that had come before it. service: of its calls that have ended, in computed
    prompt tokens. here: its calls that wait or run. fork, level: the parent of the calls that came
    last, and the level of them all.
    """

    __slots__ = ("fork", "has_ended", "has_started", "here", "level", "number", "owner", "service")

    def __init__(self, owner: Owner, number: int) -> None:
        self.owner = owner
        self.number = number
        self.service = 0
        self.here = 0
        self.has_started = False
        self.has_ended = False
        self.fork: str | None = None
        self.level = 0

    def level_of(self, parent: str) -> int:
        """The level of a call that has come now and goes on from `parent`."""
        if parent != self.fork or not parent:
            self.fork = parent
            self.level = min(LEVELS - 1, (self.service // FIRST_LEVEL).bit_length())
        return self.level
