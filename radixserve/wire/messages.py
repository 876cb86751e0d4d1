"""The messages between front and engine, as tagged unions.

Owns: the vocabulary of the border. Token ids of a prompt travel as the bytes of little-endian
int32, which is also the key of the radix tree, so nothing converts them again. Must not know:
sockets, text, tensors.

Down (front to engine): Setup once, then Generate, Abort, Control, ProgramEnd.
Up (engine to front): Ready once, then Started, PromptScores, TokenOut, Finished, ControlReply,
Stats (the heartbeat). A request gets exactly one Finished, and nothing after it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Literal

import msgspec

from radixserve.wire.cache import CacheReport, CacheStats, TreeNode
from radixserve.wire.params import Constraint, SamplingParams
from radixserve.wire.reasoning import Reasoning

Pooling = Literal["mean", "last"]


class ProgramRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a request stands in a DSL program.

    id: the run. call: path of the call in it ("0", "2.1", ..), unique in the run.
    parent: the call whose prompt this one extends. siblings: calls that fork from one place.
    """

    id: str
    call: str = ""
    parent: str = ""
    siblings: int = 1


class Generate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="generate"):
    """One output for one prompt.

    prompt: int32 little-endian bytes. params: n is 1 and seed is set here.
    output_logprobs: None off; k >= 0 gives each output token's log-probability and the k best.
    prompt_logprobs: likewise for prompt tokens from prompt_logprobs_start on. logprob_ids: wherever
    there are log-probabilities, those of these tokens, behind the best. sampled_logprobs: what a
    grammar forces is appended all the same, and stands with 0 and none of the best.
    namespace: requests share KV only within one namespace.
    constraint: what the output must match, in the form that grammar.check returns. reasoning: what
    may stand before that; stop strings and patterns hold for what is behind it.
    pooling: Finished carries an embedding, the mean of the prompt's final hidden states or the last
    of them. explain: Finished tells where the match of the prompt ended, and why. warm: when it
    ends, its prompt is kept first against eviction, as far as there is room for warm ones. whole:
    nobody reads it as it grows, so many of its tokens are told together. follows: requests that
    come in the moment in which it has ended.
    """

    rid: str
    prompt: bytes
    params: SamplingParams
    output_logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_start: int = 0
    logprob_ids: tuple[int, ...] = ()
    sampled_logprobs: bool = False
    namespace: str = ""
    priority: int = 0
    program: ProgramRef | None = None
    constraint: Constraint | None = None
    reasoning: Reasoning | None = None
    pooling: Pooling | None = None
    explain: bool = False
    warm: bool = False
    whole: bool = False
    follows: int = 0


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End a request; unknown rids are ignored (it may just have finished)."""

    rid: str


class ProgramEnd(msgspec.Struct, frozen=True, tag="program_end"):
    """The program `id` of `namespace` makes no more calls: what is known of it and kept for it may
    go. Whoever cannot tell need not send it; then that happens in time."""

    id: str
    namespace: str = ""


class Control(msgspec.Struct, frozen=True, tag="control"):
    """flush: drop every unlocked cached token. stats: answer the gauges. stop: end the loop.

    cache: answer what the cache says of itself, and with limit > 0 its tree: `limit` nodes at most,
    `depth` edges down, of one namespace or (None) of all.
    """

    id: str
    op: Literal["flush", "stats", "stop", "cache"]
    namespace: str | None = None
    depth: int = 0
    limit: int = 0


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """First message down: the resolved configuration and what the engine must know of text.

    config: the JSON of config.schema.Config. token_bytes: each id's bytes, control tokens empty.
    stop_ids: the model's end tokens. tokenizer: tokenizer.json without what it does to the
    beginning of a prompt, with which text that a grammar forces is encoded; empty: longest match.
    marks: tokens that mark tool calls, control tokens perhaps, with their texts.
    """

    config: bytes
    token_bytes: list[bytes]
    stop_ids: list[int]
    tokenizer: str = ""
    marks: dict[int, bytes] = {}


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of n tokens: log-softmax of the raw logits, natural logarithm.

    chosen: [n]. top_ids, top: [n][k], best first, and behind them the ids asked for by name.
    """

    chosen: list[float]
    top_ids: list[list[int]]
    top: list[list[float]]


def joined(parts: Sequence[Logprobs]) -> Logprobs:
    """Those of outputs that follow each other."""
    return Logprobs(
        [value for part in parts for value in part.chosen],
        [ids for part in parts for ids in part.top_ids],
        [top for part in parts for top in part.top],
    )


class Started(msgspec.Struct, frozen=True, tag="started"):
    """Nothing can refuse the request any more; it waits or runs."""

    rid: str


class PromptScores(msgspec.Struct, frozen=True, tag="scores"):
    """Log-probabilities of prompt tokens [start, start + n); position 0 has none, start >= 1."""

    rid: str
    start: int
    logprobs: Logprobs


class TokenOut(msgspec.Struct, frozen=True, omit_defaults=True, tag="tokens"):
    """New output tokens, in order. logprobs covers exactly these ids where they were asked for.
    cached_tokens: of the prompt, told once, with the first that was sampled. seconds: between the
    first of them and the last."""

    rid: str
    ids: list[int]
    logprobs: Logprobs | None = None
    cached_tokens: int | None = None
    seconds: float = 0.0


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    TIMEOUT = "timeout"  # said by the gateway, which keeps the deadlines
    SHUTDOWN = "shutdown"  # said by the gateway, which ends every request when it stops


class Finished(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="finished"):
    """The one terminal message.

    matched: the stop id or stop string that ended it. kept_bytes: with a stop string, how many
    bytes of the output text stand before it. truncated: a constrained output that max_new_tokens
    cut short; it matches its constraint all the same where that is possible.
    completion_tokens: output tokens, the stopping one included. forced_tokens: of those, the ones
    that a grammar left no choice about and that were not sampled. cached_tokens: prompt tokens
    found in the cache at first admission. computed_tokens: prompt tokens computed for this request.
    queue_seconds: from its arrival in the engine to its first admission; 0 where it never was.
    cache: of its first admission, where it was asked for. embedding: float32 little-endian.
    code, message, param: of an error.
    """

    rid: str
    reason: FinishReason
    matched: int | str | None = None
    kept_bytes: int | None = None
    truncated: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    queue_seconds: float = 0.0
    cache: CacheReport | None = None
    embedding: bytes = b""
    code: str = ""
    message: str = ""
    param: str | None = None


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """State of the engine; tokens are pages x page_size. Counters only grow.

    step_seconds: how long the step under way has taken; 0 between steps. compiling: requests whose
    grammar is being compiled. grammar_compiles, grammar_compile_seconds: grammars compiled so far,
    and the time it took; grammar_cache_hits: requests that found theirs compiled.
    """

    running: int = 0
    waiting: int = 0
    compiling: int = 0
    step_seconds: float = 0.0
    kv_tokens: int = 0
    free_tokens: int = 0
    evictable_tokens: int = 0
    locked_tokens: int = 0
    steps: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    retractions: int = 0
    evicted_tokens: int = 0
    grammar_compiles: int = 0
    grammar_compile_seconds: float = 0.0
    grammar_cache_hits: int = 0


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The model is loaded. error: why not, and then the engine ends."""

    model: str = ""
    context_len: int = 0
    vocab_size: int = 0
    kv_tokens: int = 0
    dtype: str = ""
    pid: int = 0
    error: str = ""


class ControlReply(msgspec.Struct, frozen=True, tag="reply"):
    """Answer to Control. flushed: tokens freed by a flush. cache, tree: see Control."""

    id: str
    gauges: Gauges
    flushed: int = 0
    cache: CacheStats | None = None
    tree: list[TreeNode] = []


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    """Heartbeat, about once a second from a thread of its own: alive, whatever the step does."""

    gauges: Gauges


ToEngine = Setup | Generate | Abort | Control | ProgramEnd
FromEngine = Ready | Started | PromptScores | TokenOut | Finished | ControlReply | Stats
