"""One request between its submission and the last word about it.

Owns: what is sent for it, the arrivals that wait for its reader, why it was asked to end, its
record for the metrics. Must not know: how messages come or go, HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from radixserve.chunks import Chunk, Request
from radixserve.errors import ContextTooLong, InternalError, InvalidRequest, RadixServeError
from radixserve.metrics.trail import Cause, Counts, Outcome, Recorder, Subject, Trail
from radixserve.wire.messages import Finished, FinishReason, FromEngine, Generate, TokenOut
from radixserve.wire.reasoning import Reasoning
from radixserve.wire.seeds import derive_seed

_OUTCOMES: dict[FinishReason, Outcome] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.ERROR: "error",
    FinishReason.TIMEOUT: "timeout",
    FinishReason.SHUTDOWN: "abort",
}
# What an abort is called where it was brought about by more than a client.
_ABORTED: dict[Cause | None, FinishReason] = {
    "timeout": FinishReason.TIMEOUT,
    "shutdown": FinishReason.SHUTDOWN,
}


class InFlight:
    """rids: of its outputs on the wire, in order of their index. now: seconds, monotonic."""

    def __init__(
        self,
        client: str,
        request: Request,
        rids: Sequence[str],
        recorders: Sequence[Recorder],
        now: float,
    ) -> None:
        self.client = client
        self.open = dict(zip(rids, range(len(rids))))
        self._arrived: dict[int, list[FromEngine]] = {}
        self._error: RadixServeError | None = None
        self._has_news = asyncio.Event()
        self._is_read = True
        program = request.program
        subject = Subject(
            rid=client,
            outputs=len(rids),
            origin=request.origin,
            program=program.id if program else "",
            call=program.call if program else "",
            parent=program.parent if program else "",
        )
        self._trail = Trail(subject, recorders, now)

    def take(self, rid: str, events: list[FromEngine], now: float) -> None:
        """Note what came about one output, and hand it to the reader if there is one."""
        index = self.open[rid]
        for event in events:
            match event:
                case TokenOut():
                    self._trail.tokens(index, len(event.ids), now, event.seconds)
                case Finished():
                    del self.open[rid]
                    self._trail.end(index, self._outcome(event), counts_of(event), now)
        if self._is_read:
            self._arrived.setdefault(index, []).extend(events)
            self._has_news.set()

    async def news(self) -> Iterable[tuple[int, list[FromEngine]]]:
        """What has come since the last call, by output: one piece however much it is, so that a
        reader who is behind catches up. Raises what the request failed with, behind all of it."""
        await self._has_news.wait()
        self._has_news.clear()
        arrived, self._arrived = self._arrived, {}
        if self._error is not None:
            if not arrived:
                raise self._error
            self._has_news.set()
        return arrived.items()

    def ask_to_end(self, cause: Cause) -> None:
        """Why an abort is on its way; the first reason stays."""
        if self._trail.cause is None:
            self._trail.cause = cause

    def leave(self, cause: Cause) -> None:
        """Its reader has gone; what still comes is only counted."""
        self._is_read = False
        if self.open:
            self.ask_to_end(cause)

    def fail(self, error: RadixServeError) -> None:
        """The reader gets `error` behind what has arrived."""
        self._error = error
        self._has_news.set()

    def lose(self, error: RadixServeError, now: float) -> None:
        """The engine is gone; nothing more will come."""
        self.open.clear()
        self._trail.lose(now)
        self.fail(error)

    def named(self, chunk: Chunk) -> Chunk:
        """`chunk`, where an abort is named after what brought it about."""
        finish = chunk.finish
        if finish is None or finish.reason is not FinishReason.ABORT:
            return chunk
        reason = _ABORTED.get(self._trail.cause, FinishReason.ABORT)
        return replace(chunk, finish=replace(finish, reason=reason))

    def _outcome(self, finished: Finished) -> Outcome:
        if finished.reason is FinishReason.ABORT and self._trail.cause == "timeout":
            return "timeout"
        if finished.reason is FinishReason.ERROR and finished.code != InternalError.code:
            return "refused"
        return _OUTCOMES[finished.reason]


def counts_of(finished: Finished) -> Counts:
    return Counts(
        prompt_tokens=finished.prompt_tokens,
        completion_tokens=finished.completion_tokens,
        forced_tokens=finished.forced_tokens,
        cached_tokens=finished.cached_tokens,
        computed_tokens=finished.computed_tokens,
        queue_seconds=finished.queue_seconds,
    )


def expand(request: Request, rids: Iterator[int]) -> list[Generate]:
    """One Generate per output, each with a seed and a rid of its own."""
    params = request.params
    seed = secrets.randbits(63) if params.seed is None else params.seed
    return [
        Generate(
            rid=str(next(rids)),
            prompt=request.prompt,
            params=msgspec.structs.replace(
                params, n=1, seed=seed if index == 0 else derive_seed(seed, index)
            ),
            output_logprobs=request.output_logprobs,
            constraint=request.constraint,
            reasoning=_watched(request),
            prompt_logprobs=request.prompt_logprobs if index == 0 else None,
            prompt_logprobs_start=max(1, request.prompt_logprobs_start),
            logprob_ids=request.logprob_ids,
            sampled_logprobs=request.sampled_logprobs,
            namespace=request.namespace,
            priority=request.priority,
            program=request.program,
            pooling=request.pooling,
            explain=request.explain_cache and index == 0,
            warm=request.warm and index == 0,
            whole=request.is_whole,
            follows=request.follows,
        )
        for index in range(params.n)
    ]


def _watched(request: Request) -> Reasoning | None:
    """What the engine must know of the reasoning; nothing where it is only told apart."""
    params, reasoning = request.params, request.reasoning
    if reasoning is None:
        return None
    ends = params.stop or params.stop_regex
    return reasoning if request.constraint or ends or reasoning.budget is not None else None


def check_prompt(prompt: bytes, vocab_size: int, most: int) -> None:
    """What the engine trusts. most: tokens, 0 for no bound. Raises InvalidRequest."""
    ids = np.frombuffer(prompt, "<i4")
    if not len(ids):
        raise InvalidRequest("the prompt has no tokens", param="prompt")
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        bad = int(ids[(ids < 0) | (ids >= vocab_size)][0])
        raise InvalidRequest(f"id {bad} is not in the vocabulary of {vocab_size}", param="prompt")
    if most and len(ids) > most:
        raise ContextTooLong(
            f"the prompt has {len(ids)} tokens, max_prompt_tokens is {most}", param="prompt"
        )
