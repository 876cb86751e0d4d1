"""What a constrained request's grammar tells the scheduler: the contract between grammar and
scheduler.

Owns: these types. Must not know: how a grammar works, what a scheduler does with the answers.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from radixserve.errors import RequestError


class Close(enum.Enum):
    """How an output ends by its grammar."""

    WHOLE = "whole"  # it matches, and nothing can follow
    SHORT = "short"  # the room ran out; it was brought to its shortest ending


@dataclass(frozen=True, slots=True)
class Taken:
    """What becomes of one sampled token, or of the beginning of an output.

    ids: output tokens, in order; the sampled one comes first unless it was not taken.
    forced: how many of them, the last ones, were not sampled. close: the output has ended.
    stopped: it ended by the sampled token, one of the request's stop ids; a stop id that stands in
    forced text is text.
    thoughts: how many of them, the first ones, are no part of the answer: stop strings do not look
    at them. again: nothing was taken; sample this position again, under another mask.
    error: the request cannot go on.
    """

    ids: tuple[int, ...]
    forced: int = 0
    close: Close | None = None
    stopped: bool = False
    thoughts: int = 0
    again: bool = False
    error: RequestError | None = None


class Guide(Protocol):
    """One output under one grammar."""

    def begin(self, room: int, *, one_by_one: bool) -> Taken:
        """Before anything is sampled. room: most tokens of the output. one_by_one: nothing may be
        appended without being sampled. Raises InvalidRequest when no output fits the room."""

    def take(self, token: int, room: int) -> Taken:
        """A token was sampled under the mask; room: tokens that may follow it."""

    def whole_at(self, size: int) -> bool:
        """Whether the first `size` bytes of the output are a whole one."""
