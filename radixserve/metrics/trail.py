"""What happened to one request, and when.

Owns: the times and counts of a request from its arrival to the last word about it, and telling
them to the recorders (metrics, traces). Must not know: what a recorder does with them, the wire.

Times are seconds of time.monotonic().
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Outcome = Literal["stop", "length", "abort", "timeout", "refused", "error"]
Cause = Literal["client", "request", "timeout", "shutdown", "error", "engine"]

# Of several outputs that ended differently, the last in this order names the request's end.
_SEVERITY: tuple[Outcome, ...] = ("stop", "length", "abort", "timeout", "refused", "error")


@dataclass(frozen=True, slots=True)
class Origin:
    """Who asks. tenant: name of the key, empty where keys are off. request_id: of the HTTP call.

    traceparent: the caller's span, as W3C writes it. counted: false for probes, which no metric
    shows.
    """

    tenant: str = ""
    request_id: str = ""
    traceparent: str = ""
    counted: bool = True


NOBODY = Origin()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the engine says of one output at its end. queue_seconds: before its first admission."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    queue_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Which request it is. program, call, parent: its place in a program, empty outside one."""

    rid: str
    outputs: int
    origin: Origin
    program: str = ""
    call: str = ""
    parent: str = ""


class Recorder(Protocol):
    """Is told of requests as they go on. Nothing that it does may fail a request."""

    def produced(self, trail: Trail, count: int, gap: float | None) -> None:
        """`count` tokens of one output came, each `gap` seconds after the one before it; None for
        the first ones of an output."""

    def ended(self, trail: Trail) -> None:
        """The last output has ended: the trail is whole."""


@dataclass(slots=True)
class Trail:
    """One request's record. outcome: None until it has ended. cause: why it was asked to end."""

    subject: Subject
    recorders: Sequence[Recorder]
    arrived: float
    wall: float = field(default_factory=time.time)
    first: float | None = None
    last: float | None = None
    finished: float = 0.0
    produced: int = 0
    outcome: Outcome | None = None
    cause: Cause | None = None
    _lasts: dict[int, float] = field(default_factory=dict)
    _ends: dict[int, tuple[Outcome, Counts]] = field(default_factory=dict)

    def tokens(self, index: int, count: int, now: float, seconds: float = 0.0) -> None:
        """Output `index` has `count` more tokens, the last of which came now and the first so many
        seconds before."""
        if not count:
            return
        before = self._lasts.get(index)
        if before is None and seconds:
            self._tell(index, 1, None, now - seconds)
            self._tell(index, count - 1, seconds / max(1, count - 1), now)
        else:
            self._tell(index, count, None if before is None else (now - before) / count, now)

    def _tell(self, index: int, count: int, gap: float | None, now: float) -> None:
        self._lasts[index] = self.last = now
        self.produced += count
        if self.first is None:
            self.first = now
        for recorder in self.recorders:
            recorder.produced(self, count, gap)

    def end(self, index: int, outcome: Outcome, counts: Counts, now: float) -> None:
        """Output `index` has ended."""
        self._ends[index] = (outcome, counts)
        if len(self._ends) == self.subject.outputs:
            self._finish(now)

    def lose(self, now: float) -> None:
        """The engine is gone: nothing more will be told of this request."""
        if self.outcome is None:
            self.cause = "engine"
            for index in range(self.subject.outputs):
                self._ends.setdefault(index, ("error", Counts()))
            self._finish(now)

    @property
    def totals(self) -> Counts:
        """Counts of the whole request, as its usage has them: the prompt once, outputs summed.

        Outputs after the first find the prompt in the cache because of their sisters, so what was
        cached before the request is the smallest count.
        """
        known = [counts for _, counts in self._ends.values() if counts.prompt_tokens]
        if not known:
            return Counts()
        return Counts(
            prompt_tokens=known[0].prompt_tokens,
            completion_tokens=sum(counts.completion_tokens for counts in known),
            forced_tokens=sum(counts.forced_tokens for counts in known),
            cached_tokens=min(counts.cached_tokens for counts in known),
            computed_tokens=sum(counts.computed_tokens for counts in known),
            queue_seconds=min(counts.queue_seconds for counts in known),
        )

    def _finish(self, now: float) -> None:
        self.finished = now
        self.outcome = max((outcome for outcome, _ in self._ends.values()), key=_SEVERITY.index)
        for recorder in self.recorders:
            recorder.ended(self)
