"""From a native body to requests of the gateway.

Owns: the fields of a native body, their defaults, which of them are refused. Must not know:
how an answer looks, HTTP, the engine.

A body has exactly one of `text`, `input_ids` and `input` (parts of one prompt). null means the
default everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixserve.chunks import Request
from radixserve.errors import InvalidRequest
from radixserve.native.calls import MAX_RID, Door, new_rid, vocabulary
from radixserve.native.constraint import Wish
from radixserve.native.fields import Name, Path, Seconds, read
from radixserve.native.prompts import Prompt, ids_bytes, read_prompts
from radixserve.native.reasoning import reasoning_of
from radixserve.native.sampling import Asked, Sampling, sampling_params
from radixserve.native.tool_wish import is_marked, tool_wish
from radixserve.native.toolbox import Toolbox
from radixserve.native.tools import toolbox_of
from radixserve.text.tokenizer import check_text
from radixserve.wire.messages import ProgramRef
from radixserve.wire.params import MAX_TOP_LOGPROBS

MAX_NAMED_IDS = 256

# Known names that have no effect here yet, with the values that ask for none.
REFUSED_FIELDS: dict[str, tuple[Any, ...]] = {
    "return_hidden_states": (False,),
    "input_embeds": (),
    "image_data": ([],),
    "audio_data": ([],),
    "video_data": ([],),
    "lora_path": ("",),
    "session_params": ({},),
    "custom_logit_processor": ("",),
    "return_routed_experts": (False,),
    "routed_experts_start_len": (0,),
    "return_indexer_topk": (False,),
    "return_sampling_mask": (False,),
    "return_flat_raw_top_logprobs": (False,),
    "return_flat_raw_output_top_logprobs": (False,),
    "use_audio_in_video": (False,),
    "background": (False,),
    "require_reasoning": (False,),
    "no_logs": (False,),
    "log_metrics": (True,),
}


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """logprob_start_len: first prompt token to score, -1 for none. token_ids_logprob: ids whose
    log-probabilities are told at each position, for all prompts or in a list for each. program: see
    ProgramRef.

    timeout_s: seconds after which it is ended, whatever it waits for; what it has is the answer.
    explain_cache: tell why no more of the prompt was cached, see explained.cache_fields.
    tools, tool_choice, parallel_tool_calls: what outputs may call, as in chat; calls stand in
    tool_calls beside text, which is without them. The prompt is to tell of the tools: parts by a
    tools part.
    separate_reasoning: reasoning_content stands beside text, which is without it.
    thinking_token_budget: most tokens of reasoning. With either, constraints and stop strings hold
    behind the reasoning.
    """

    text: str | list[str] | None = None
    input_ids: list[Any] | None = None
    input: list[dict[str, Any]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any] | None] = {}
    rid: str | list[str] = ""
    stream: bool = False
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: list[Any] = []
    return_text_in_logprobs: bool = False
    cache_salt: Name = ""
    extra_key: Name = ""
    priority: int = 0
    timeout_s: Seconds | None = None
    program: dict[str, Any] | None = None
    explain_cache: bool = False
    tools: list[Any] = []
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    separate_reasoning: bool = False
    thinking_token_budget: int | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """logprobs: report those of outputs. top: how many of the best. text: spell tokens out."""

    logprobs: bool
    top: int
    text: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What one body asks for. batched: a list came in, so a list goes out.

    wishes: what the outputs of each request are to be bound to; the requests do not say it yet.
    names: of the functions that outputs may call. marked: whether those of each request do so
    behind a mark, see tool_wish.is_marked.
    """

    name: str
    body: Body
    prompts: tuple[Prompt, ...]
    requests: tuple[Request, ...]
    wishes: tuple[Wish | None, ...]
    batched: bool
    wanted: Wanted
    names: frozenset[str]
    marked: tuple[bool, ...]


def prepare(raw: object, gateway: Door) -> Call:
    """Read and tokenise a native body. Takes time in the length of the text: call in a thread.

    Raises InvalidRequest naming the field at fault.
    """
    _check_place(raw)
    body = read(Body, raw, refused=REFUSED_FIELDS)
    for name in ("cache_salt", "extra_key"):
        check_text(getattr(body, name), name)
    prompts, batched = read_prompts(body, gateway)
    wanted = _wanted(body)
    box = toolbox_of(body)
    program = program_ref(body.program)
    rids = _rids(body, len(prompts), batched)
    params = _each_sampling(body, len(prompts), batched)
    requests = []
    named = _named_ids(body, len(prompts), batched, vocabulary(gateway))
    for prompt, rid, asked, ids in zip(prompts, rids, params, named, strict=True):
        _check_text_options(prompt, asked)
        start = _first_scored(body, len(prompt.ids) // 4)
        requests.append(
            Request(
                prompt=prompt.ids,
                params=asked.params,
                rid=rid,
                output_logprobs=wanted.top if wanted.logprobs else None,
                prompt_logprobs=None if start is None else wanted.top,
                prompt_logprobs_start=start or 0,
                logprob_ids=ids,
                namespace=namespace(body.cache_salt, body.extra_key),
                priority=body.priority,
                timeout_s=body.timeout_s,
                program=program,
                explain_cache=body.explain_cache,
                shows_special=asked.shows_special,
                keeps_stop=asked.keeps_stop,
                reasoning=reasoning_of(
                    prompt.ids,
                    gateway.renderer,
                    separates=body.separate_reasoning,
                    budget=body.thinking_token_budget,
                ),
            )
        )
    name = body.rid if isinstance(body.rid, str) and body.rid else rids[0]
    return Call(
        name=name,
        body=body,
        prompts=tuple(prompts),
        requests=tuple(requests),
        wishes=tuple(_wish(box, asked, gateway) for asked in params),
        batched=batched,
        wanted=wanted,
        names=box.names,
        marked=tuple(is_marked(box, asked.wish) for asked in params),
    )


def _wish(box: Toolbox, asked: Asked, gateway: Door) -> Wish | None:
    """What outputs are bound to, their calls and what else is asked for in one."""
    if box.names and asked.wish is not None and asked.wish.tells_fields:
        raise InvalidRequest(
            "field_logprobs and tools exclude each other: a call has no fields of the answer",
            param="sampling_params.field_logprobs",
            code="conflicting_parameters",
        )
    syntax = gateway.renderer.speech.syntax
    return tool_wish(box, asked.wish, syntax, "sampling_params.max_new_tokens")


def _check_place(raw: object) -> None:
    """Raise InvalidRequest for what stands in the wrong field, saying which is the right one."""
    if not isinstance(raw, dict):
        return
    text = raw.get("text")
    first = text[0] if isinstance(text, list) and text else None
    if isinstance(first, int) or (
        isinstance(first, list) and all(isinstance(token, int) for token in first[:1])
    ):
        raise InvalidRequest("text holds token ids; they belong in input_ids", param="text")
    for name in Sampling.__struct_fields__:
        if raw.get(name) is not None:
            raise InvalidRequest(
                f"{name} belongs in sampling_params", param=name, code="unknown_parameter"
            )


def namespace(cache_salt: str, extra_key: str = "") -> str:
    """Requests share KV only where both are equal; ("a", "bc") and ("ab", "c") differ."""
    if not cache_salt and not extra_key:
        return ""
    return f"{len(cache_salt)}:{cache_salt}{extra_key}"


def _wanted(body: Body) -> Wanted:
    if not 0 <= body.top_logprobs_num <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs_num must be from 0 to {MAX_TOP_LOGPROBS}", param="top_logprobs_num"
        )
    if body.top_logprobs_num and not body.return_logprob:
        raise InvalidRequest("top_logprobs_num needs return_logprob", param="top_logprobs_num")
    if body.logprob_start_len < -1:
        raise InvalidRequest(
            "logprob_start_len is a position in the prompt, or -1", param="logprob_start_len"
        )
    return Wanted(body.return_logprob, body.top_logprobs_num, body.return_text_in_logprobs)


def _named_ids(body: Body, count: int, batched: bool, vocab_size: int) -> list[tuple[int, ...]]:
    """token_ids_logprob of each prompt."""
    at, given = "token_ids_logprob", body.token_ids_logprob
    if not given:
        return [()] * count
    if not body.return_logprob:
        raise InvalidRequest(f"{at} needs return_logprob", param=at)
    rows = given if isinstance(given[0], list) else [given] * count
    if len(rows) != count or (rows is given and not batched):
        raise InvalidRequest(f"{at} is a list of ids, or of {count} lists of them", param=at)
    for row in rows:
        if row != []:
            ids_bytes(row, at, vocab_size)
        if len(row) > MAX_NAMED_IDS:
            raise InvalidRequest(f"{at} names more than {MAX_NAMED_IDS} ids", param=at)
    return [tuple(row) for row in rows]


def _first_scored(body: Body, prompt_tokens: int) -> int | None:
    """First prompt token whose score is computed; None for none. Position 0 never has one."""
    if not body.return_logprob or body.logprob_start_len < 0:
        return None
    start = max(1, body.logprob_start_len)
    return start if start < prompt_tokens else None


def program_ref(raw: dict[str, Any] | None) -> ProgramRef | None:
    """Where a request stands in a program. Raises InvalidRequest naming the field."""
    if raw is None:
        return None
    given = read(_Program, raw, at="program")
    for name in ("id", "call", "parent"):
        check_text(getattr(given, name), f"program.{name}")
    if given.siblings < 1:
        raise InvalidRequest("program.siblings must be at least 1", param="program.siblings")
    return ProgramRef(given.id, given.call, given.parent, given.siblings)


class _Program(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    id: Name
    call: Path = ""
    parent: Path = ""
    siblings: int = 1


def _rids(body: Body, count: int, batched: bool) -> list[str]:
    if not body.rid:
        return [new_rid() for _ in range(count)]
    given = [body.rid] if isinstance(body.rid, str) else body.rid
    for rid in given:
        check_rid(rid)
    if isinstance(body.rid, str):
        return [body.rid] if not batched else [f"{body.rid}~{i}" for i in range(count)]
    if not batched or len(given) != count or len(set(given)) != count:
        raise InvalidRequest(
            f"rid must be one text, or a list of {count} different ones", param="rid"
        )
    return list(given)


def check_rid(rid: str) -> None:
    """Raise InvalidRequest unless a client may call a request so."""
    check_text(rid, "rid")
    if not 1 <= len(rid) <= MAX_RID:
        raise InvalidRequest(f"a rid has from 1 to {MAX_RID} characters", param="rid")


def _check_text_options(prompt: Prompt, asked: Asked) -> None:
    """The state of a program is what an output keeps, which these would make another text."""
    for name, value in (
        ("skip_special_tokens", asked.shows_special),
        ("no_stop_trim", asked.keeps_stop),
    ):
        if value and prompt.encoded is not None:
            raise InvalidRequest(
                f"{name} goes with text and input_ids, not with parts",
                param=f"sampling_params.{name}",
            )


def _each_sampling(body: Body, count: int, batched: bool) -> Sequence[Asked]:
    given = body.sampling_params
    if isinstance(given, dict):
        return [sampling_params(given)] * count
    if not batched or len(given) != count:
        raise InvalidRequest(
            f"sampling_params must be one object, or a list of {count}", param="sampling_params"
        )
    return [sampling_params(row or {}, f"sampling_params[{i}]") for i, row in enumerate(given)]
