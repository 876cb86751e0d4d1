"""Outputs as they grow: what all chunks of one index add up to.

Owns: adding up, the counts of a whole request. Must not know: any dialect's shape, HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from radixserve.chunks import Chunk, Finish, Usage
from radixserve.errors import Cancelled, InternalError, Stopping, TimedOut
from radixserve.wire.messages import FinishReason, Logprobs


@dataclass(slots=True)
class PromptScores:
    """Scores of prompt tokens [start, start + len(chosen)); they may come piece by piece."""

    start: int = 0
    chosen: list[float] = field(default_factory=list)
    top_ids: list[list[int]] = field(default_factory=list)
    top: list[list[float]] = field(default_factory=list)

    def add(self, start: int, piece: Logprobs) -> None:
        if not self.chosen:
            self.start = start
        if start != self.end:
            raise InternalError(f"prompt scores from {start} follow those to {self.end}")
        self.chosen.extend(piece.chosen)
        self.top_ids.extend(piece.top_ids)
        self.top.extend(piece.top)

    @property
    def end(self) -> int:
        return self.start + len(self.chosen)


@dataclass(slots=True)
class Output:
    """One output so far. chosen, top_ids, top: one entry for each id where they were asked for.

    prompt_scores: those of the prompt's tokens; outputs of one prompt share one.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list)
    chosen: list[float] = field(default_factory=list)
    top_ids: list[list[int]] = field(default_factory=list)
    top: list[list[float]] = field(default_factory=list)
    prompt_scores: PromptScores = field(default_factory=PromptScores)
    finish: Finish | None = None

    def add(self, chunk: Chunk) -> None:
        self.text += chunk.text
        self.ids.extend(chunk.ids)
        if chunk.logprobs is not None:
            self.chosen.extend(chunk.logprobs.chosen)
            self.top_ids.extend(chunk.logprobs.top_ids)
            self.top.extend(chunk.logprobs.top)
        if chunk.prompt_scores is not None:
            self.prompt_scores.add(*chunk.prompt_scores)
        if chunk.finish is not None:
            self.finish = chunk.finish


def finished(output: Output) -> Finish:
    """The output's finish. Raises InternalError if the stream ended without one."""
    if output.finish is None:
        raise InternalError("the stream ended without a finish")
    return output.finish


def completed(finish: Finish) -> None:
    """Raise where the output did not come to an end of its own: aborted, or failed."""
    if finish.reason is FinishReason.ABORT:
        raise Cancelled("the request was aborted")
    if finish.reason is FinishReason.TIMEOUT:
        raise TimedOut("the request passed its deadline")
    if finish.reason is FinishReason.SHUTDOWN:
        raise Stopping
    if finish.reason is FinishReason.ERROR:
        raise InternalError("the engine failed while it served this request")


def total(usages: Iterable[Usage]) -> Usage:
    """Counts of one prompt with several outputs: the prompt once, the outputs summed.

    Outputs after the first find the prompt in the cache because of their sisters, so what was
    cached before the request is the smallest count.
    """
    each = list(usages)
    return Usage(
        prompt_tokens=each[0].prompt_tokens,
        completion_tokens=sum(usage.completion_tokens for usage in each),
        cached_tokens=min(usage.cached_tokens for usage in each),
        computed_tokens=sum(usage.computed_tokens for usage in each),
        forced_tokens=sum(usage.forced_tokens for usage in each),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in each),
    )
