"""What a client asks of the gateway and what it gets: Request in, Chunks out.

Owns: these types, and the turning of one output's tokens into text (OutputText). Must not know:
the engine, HTTP, who reads the chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from radixserve.errors import request_error
from radixserve.metrics.trail import NOBODY, Origin
from radixserve.text.incremental import Detokenizer
from radixserve.text.reasoning_tokens import ReasoningCount
from radixserve.text.renderer import Renderer
from radixserve.wire.cache import CacheReport
from radixserve.wire.messages import (
    Finished,
    FinishReason,
    FromEngine,
    Logprobs,
    Pooling,
    ProgramRef,
    PromptScores,
    TokenOut,
    joined,
)
from radixserve.wire.params import Constraint, SamplingParams
from radixserve.wire.reasoning import Reasoning


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt in ids and what is wanted of it.

    prompt: int32 little-endian bytes. params.n outputs are made, each a request of its own
    in the engine. rid: "" draws one. constraint: as grammar.check returned it. timeout_s: seconds
    from its submission until it is ended, whatever it waits for; None: none. origin: who asks.
    explain_cache: Finish tells why no more of the prompt was cached. warm: keep the prompt in the
    cache first. pooling: Finish carries the prompt's embedding; with max_new_tokens 0.
    shows_special: the text spells control tokens. keeps_stop: the text ends with what stopped it.
    sampled_logprobs: see Generate. belongs: it scores something of another request, which has been
    let in and has paid for the prompt before that. reasoning: how its outputs may reason; then the
    text spells the tags, whatever shows_special says, a constraint and stop strings hold for the
    answer alone, and Usage counts the reasoning. is_whole: only the whole of it is of use, so that
    its chunks may be few. follows: see Generate.
    """

    prompt: bytes
    params: SamplingParams
    rid: str = ""
    output_logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_start: int = 0
    logprob_ids: tuple[int, ...] = ()
    sampled_logprobs: bool = False
    belongs: bool = False
    namespace: str = ""
    priority: int = 0
    program: ProgramRef | None = None
    constraint: Constraint | None = None
    timeout_s: float | None = None
    origin: Origin = NOBODY
    explain_cache: bool = False
    warm: bool = False
    pooling: Pooling | None = None
    shows_special: bool = False
    keeps_stop: bool = False
    reasoning: Reasoning | None = None
    is_whole: bool = False
    follows: int = 0


def of_key(bound: str, namespace: str) -> str:
    """Where a request of `namespace` looks, when its key is bound to the namespace `bound`.

    No two keys' namespaces meet, nor those without one: a request's own begins with a digit or is
    empty. bound "" is a key that is not bound.
    """
    return f"@{len(bound)}:{bound}{namespace}" if bound else namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Counts of one output; prompt and cached counts of outputs of one request are the same prompt.

    completion_tokens counts output tokens, the one that stopped it included; forced_tokens those of
    them that a grammar left no choice about and that were not sampled, reasoning_tokens those of
    the reasoning without its tags.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    computed_tokens: int
    forced_tokens: int = 0
    reasoning_tokens: int = 0


class Violation(TypedDict):
    """What a finished text breaks of the schema that it was to satisfy.

    pointer: JSON pointer of the place in the text's value. keyword: of the schema.
    """

    pointer: str
    keyword: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """matched: the stop id or string. kept_ids: output tokens wholly before the cut of a stop.

    truncated: a constrained output was cut short by max_new_tokens, and ended as its constraint
    allows. violations: where the text was validated; fields: how sure the model was of each, see
    native/confidence.py; the gateway leaves both to the dialects.
    cache, embedding (float32, little-endian): where they were asked for. queue_seconds: before its
    first admission, a constraint's compilation included.
    """

    reason: FinishReason
    matched: int | str | None
    kept_ids: int
    usage: Usage
    truncated: bool = False
    violations: tuple[Violation, ...] | None = None
    fields: dict[str, dict[str, Any]] | None = None
    cache: CacheReport | None = None
    embedding: bytes = b""
    queue_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What is new of output `index`. The first of a stream may be empty: the request is accepted.

    text: UTF-8-safe, never part of a stop string unless the request keeps those. ids, logprobs:
    the new tokens, which may run ahead of text while it is held back. prompt_scores: (start,
    logprobs), before any token. cached_tokens: of the prompt, once, with the first token that was
    sampled. finish: on the last chunk of this index, None before.
    """

    index: int
    text: str = ""
    ids: tuple[int, ...] = ()
    logprobs: Logprobs | None = None
    prompt_scores: tuple[int, Logprobs] | None = None
    cached_tokens: int | None = None
    finish: Finish | None = None


class OutputText:
    """One output's tokens on their way to text."""

    def __init__(self, index: int, renderer: Renderer, request: Request) -> None:
        self._index = index
        self._keeps_stop = request.keeps_stop
        self._text: Detokenizer = renderer.detokenizer(
            tuple(text.encode() for text in request.params.stop),
            skip_special=not request.shows_special,
            keep_stop=request.keeps_stop,
            spelt=_spelt(renderer, request),
        )
        self._count = 0
        self._reasoning: ReasoningCount | None = None
        if request.reasoning is not None:
            self._reasoning = ReasoningCount(request.reasoning, renderer.spell)

    def take(self, events: list[FromEngine]) -> Chunk:
        """The chunk of one engine message's events about this output."""
        ids: list[int] = []
        logprobs: list[Logprobs] = []
        scores: list[PromptScores] = []
        cached: int | None = None
        finished: Finished | None = None
        for event in events:
            match event:
                case TokenOut():
                    ids += event.ids
                    cached = event.cached_tokens if cached is None else cached
                    if event.logprobs is not None:
                        logprobs.append(event.logprobs)
                case PromptScores():
                    scores.append(event)
                case Finished():
                    finished = event
        if finished is not None and finished.reason is FinishReason.ERROR:
            raise request_error(finished.code, finished.message, finished.param)
        self._count += len(ids)
        if self._reasoning is not None:
            self._reasoning.add(ids)
        return Chunk(
            index=self._index,
            text=self._text_of(ids, finished),
            ids=tuple(ids),
            logprobs=joined(logprobs) if logprobs else None,
            prompt_scores=(scores[0].start, joined([s.logprobs for s in scores]))
            if scores
            else None,
            cached_tokens=cached,
            finish=None if finished is None else self._finish(finished),
        )

    def _text_of(self, ids: list[int], finished: Finished | None) -> str:
        if finished is None:
            return self._text.push(ids)
        if isinstance(finished.matched, int) and not self._keeps_stop:
            ids = ids[:-1]  # the stop token is not part of the text
        return self._text.push(ids) + self._text.finish(finished.kept_bytes)

    def _finish(self, finished: Finished) -> Finish:
        kept = self._count
        if isinstance(finished.matched, int):
            kept -= 1
        elif finished.kept_bytes is not None:
            kept = self._text.kept_tokens(finished.kept_bytes)
        return Finish(
            reason=finished.reason,
            matched=finished.matched,
            kept_ids=kept,
            usage=Usage(
                prompt_tokens=finished.prompt_tokens,
                completion_tokens=finished.completion_tokens,
                cached_tokens=finished.cached_tokens,
                computed_tokens=finished.computed_tokens,
                forced_tokens=finished.forced_tokens,
                reasoning_tokens=0 if self._reasoning is None else self._reasoning.tokens,
            ),
            truncated=finished.truncated,
            cache=finished.cache,
            embedding=finished.embedding,
            queue_seconds=finished.queue_seconds,
        )


def _spelt(renderer: Renderer, request: Request) -> frozenset[int]:
    """Control tokens that stand for their texts."""
    marks = renderer.marks if request.constraint and request.constraint.marks else ()
    return frozenset((*marks, *(request.reasoning.spelt if request.reasoning else ())))
