"""What the scheduler tells the front, and the counters that must agree with it.

Owns: the making of TokenOut, PromptScores and Finished, and the counters of Gauges. Must not know:
the queue, the cache.
"""

from __future__ import annotations

import time

from radixserve.errors import InternalError, RequestError
from radixserve.plan import TokenLogprobs
from radixserve.scheduler.finish import Ending
from radixserve.scheduler.request import Request
from radixserve.wire.messages import (
    Finished,
    FinishReason,
    FromEngine,
    Gauges,
    Logprobs,
    PromptScores,
    TokenOut,
    joined,
)

Events = list[FromEngine]

FEW = 8
TOGETHER = 64
"""Times that an output grows before it is told, where only the whole of it is of use."""


def on_wire(values: TokenLogprobs) -> Logprobs:
    return Logprobs(values.chosen.tolist(), values.top_ids.tolist(), values.top.tolist())


def finished(rid: str, reason: FinishReason, *, error: RequestError) -> Finished:
    """The refusal of a request that never was admitted."""
    return Finished(
        rid=rid, reason=reason, code=error.code, message=error.message, param=error.param
    )


def _padded(known: Logprobs | None, sampled: int, size: int) -> Logprobs:
    """The first `sampled` of these and, for tokens that nobody chose, 0."""
    chosen, ids, top = ([], [], []) if known is None else (known.chosen, known.top_ids, known.top)
    left = size - sampled
    empty: list[list[int]] = [[]] * left
    none: list[list[float]] = [[]] * left
    return Logprobs(chosen[:sampled] + [0.0] * left, ids[:sampled] + empty, top[:sampled] + none)


def _untold(request: Request) -> Events:
    """What has grown and has not been told, as one."""
    pieces, request.untold = request.untold, []
    if not pieces:
        return []
    logprobs = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    cached = (piece.cached_tokens for piece in pieces if piece.cached_tokens is not None)
    return [
        TokenOut(
            request.rid,
            [token for piece in pieces for token in piece.ids],
            joined(logprobs) if logprobs else None,
            next(cached, None),
            time.monotonic() - request.untold_since if len(pieces) > 1 else 0.0,
        )
    ]


class Outputs:
    """Counts as it speaks, so that metrics equal the sum of usages."""

    def __init__(self) -> None:
        self.retractions = 0
        self._requests = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._computed_tokens = 0
        self._generated_tokens = 0
        self._forced_tokens = 0
        self._followers = 0

    def count_cached(self, request: Request, start: int, end: int) -> None:
        """Tokens [start, end) came from the cache; output that was there before them counts not."""
        if len(request.output) == request.opening_len and not request.failures:
            n = min(end, request.prompt_len) - min(start, request.prompt_len)
            request.cached_tokens += n
            self._cached_tokens += n

    def count_computed(self, request: Request, n: int) -> None:
        request.computed_tokens += n
        self._computed_tokens += n

    def tokens(
        self, request: Request, ids: list[int], forced: int, logprobs: Logprobs | None
    ) -> Events:
        """Append tokens to the request's output and report them, at once or with later ones; the
        last `forced` of them were not sampled. logprobs: of the sampled ones."""
        if request.message.output_logprobs is not None and forced:
            logprobs = _padded(logprobs, len(ids) - forced, len(ids))
        is_first = len(request.output) == request.opening_len and forced < len(ids)
        request.output += ids
        self._generated_tokens += len(ids)
        told = TokenOut(request.rid, ids, logprobs, request.cached_tokens if is_first else None)
        if not request.message.whole:
            return [told]
        if not request.untold:
            request.untold_since = time.monotonic()
        request.untold.append(told)
        return [] if len(request.untold) < TOGETHER else _untold(request)

    def count_forced(self, request: Request, n: int) -> None:
        request.forced += n
        self._forced_tokens += n

    def score(self, request: Request, start: int, values: TokenLogprobs) -> Events:
        """Report scores of prompt tokens [start, ..) once each."""
        request.scored = start + len(values.chosen)
        return [PromptScores(request.rid, start, on_wire(values))]

    def finish(self, request: Request, ending: Ending, error: Exception | None) -> Events:
        """What is still to be told of it, and its end."""
        return [*_untold(request), self._finished(request, ending, error)]

    def _finished(self, request: Request, ending: Ending, error: Exception | None) -> Finished:
        self._requests += 1
        if ending.reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._followers += request.message.follows
        self._prompt_tokens += request.prompt_len
        refusal = None
        if error is not None:
            refusal = error if isinstance(error, RequestError) else InternalError(str(error))
        return Finished(
            rid=request.rid,
            reason=ending.reason,
            matched=ending.matched,
            kept_bytes=ending.kept_bytes,
            truncated=request.is_bound and ending.reason is FinishReason.LENGTH,
            prompt_tokens=request.prompt_len,
            completion_tokens=len(request.output),
            forced_tokens=request.forced,
            cached_tokens=request.cached_tokens,
            computed_tokens=request.computed_tokens,
            queue_seconds=request.queue_seconds,
            cache=request.cache_report,
            embedding=b"" if error is not None else request.embedding(),
            code="" if refusal is None else refusal.code,
            message="" if refusal is None else refusal.message,
            param=None if refusal is None else refusal.param,
        )

    def followers(self, running: int) -> int:
        """Requests that were to come at once behind those that have ended since the last call; 0
        where they would be few beside those that run: the next step is soon enough for them."""
        count, self._followers = self._followers, 0
        return count if count * FEW >= running else 0

    def gauges(self, **state: int) -> Gauges:
        return Gauges(
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            computed_tokens=self._computed_tokens,
            generated_tokens=self._generated_tokens,
            forced_tokens=self._forced_tokens,
            retractions=self.retractions,
            **state,
        )
