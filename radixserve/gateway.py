"""The gateway: the front's one door to the engine. Verbs: submit, abort.

Owns: which client a rid belongs to, expansion of n, seeds that were not given, bounds of each
stream. Must not know: HTTP, chat templates, the scheduler, tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from radixserve.wire.messages import FinishReason, Logprobs, ProgramRef
from radixserve.wire.params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt in ids and what is wanted of it.

    prompt: int32 little-endian bytes. params.n outputs are made, each a request of its own
    in the engine. rid: "" draws one.
    """

    prompt: bytes
    params: SamplingParams
    rid: str = ""
    output_logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_start: int = 0
    namespace: str = ""
    priority: int = 0
    program: ProgramRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Counts of one output; prompt and cached counts of outputs of one request are the same prompt.

    completion_tokens counts sampled tokens, the one that stopped it included.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    computed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """matched: the stop id or string. kept_ids: output tokens wholly before the cut of a stop."""

    reason: FinishReason
    matched: int | str | None
    kept_ids: int
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What is new of output `index`. The first of a stream may be empty: the request is accepted.

    text: UTF-8-safe, never part of a stop string. ids, logprobs: the new tokens, which may run
    ahead of text while it is held back. prompt_scores: (start, logprobs) once, before any token.
    finish: on the last chunk of this index, None before.
    """

    index: int
    text: str = ""
    ids: tuple[int, ...] = ()
    logprobs: Logprobs | None = None
    prompt_scores: tuple[int, Logprobs] | None = None
    finish: Finish | None = None
