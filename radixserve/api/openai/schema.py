"""The fields of the OpenAI dialect.

Owns: which fields exist on each endpoint, their types and defaults, which are refused, which are
taken and have no effect. Must not know: how a request is served.

A field is in exactly one of these places: in the struct (implemented), in HARMLESS (taken; it has
no effect here by its nature), in REFUSED with the values that ask for nothing. Any other name is a
400. null always means absent.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from radixserve.api.turns.ask import Labelled
from radixserve.native.constraint import Mode
from radixserve.native.fields import Name, read
from radixserve.wire.params import Whitespace

Given = TypeVar("Given", bound="Sampled")


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """include_usage: one more chunk at the end, with the counts and no choices."""

    include_usage: bool = False


class Sampled(Labelled, msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What chat and completions have in common.

    max_tokens, max_completion_tokens: the smaller holds where both are given; with neither,
    config.http.default_max_tokens does. The bound is cut to what the context has room for.
    top_k, min_p, repetition_penalty, min_tokens, stop_token_ids and ignore_eos are ours, as all
    of Labelled: see SamplingParams.
    response_format to field_logprobs: api/openai/constraint.py. no_stop_trim and
    include_stop_str_in_output are two names for one thing; spaces_between_special_tokens changes
    nothing, see native/sampling.py.
    """

    model: str = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    n: int = 1
    stop: str | list[str] = []
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    stop_token_ids: list[int] = []
    stop_regex: str | list[str] = []
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    include_stop_str_in_output: bool = False
    response_format: dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    choice: list[str] | None = None
    structural_tag: str | dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None
    whitespace: Whitespace = "fixed"
    constraint_mode: Mode = "enforce"
    field_logprobs: bool = False


class ChatRequest(Sampled, kw_only=True):
    """add_generation_prompt: true unless continue_final_message is. tools, tool_choice,
    parallel_tool_calls: see tools.py. separate_reasoning: reasoning is told apart from content;
    thinking_token_budget: most tokens of it; reasoning_effort: see turns/reasoning.py."""

    messages: list[Any]
    logprobs: bool = False
    top_logprobs: int = 0
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] = {}
    tools: list[Any] = []
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    separate_reasoning: bool = True
    thinking_token_budget: int | None = None
    reasoning_effort: str | None = None


class CompletionRequest(Sampled, kw_only=True):
    """prompt: text, ids, or a list of either. logprobs: how many of the best beside the chosen."""

    prompt: Any
    logprobs: int | None = None
    echo: bool = False
    best_of: int | None = None


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a message may hold; the text room reads it further. tool_calls: each a ToolCall. parsed:
    what a client made of the content; it is not read. reasoning: another name of
    reasoning_content."""

    role: str
    content: str | list[Any] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    parsed: Any = None


class ToolCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A call of an earlier turn. index: as streams number them; it changes nothing."""

    function: CalledFunction
    id: str = ""
    type: Literal["function"] = "function"
    index: int = 0


class CalledFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """arguments: JSON text, as OpenAI writes it, or the object itself. parsed_arguments: what a
    client made of them; it is not read."""

    name: str
    arguments: str | dict[str, Any] | None = None
    parsed_arguments: Any = None


ROLES = ("system", "developer", "user", "assistant", "tool")

# user, safety_identifier: who asks. metadata: a label. prompt_cache_key, prompt_cache_retention:
# hints for finding the cache, which here is found by the prompt itself.
HARMLESS: dict[str, Any] = {
    "user": Name,
    "safety_identifier": Name,
    "metadata": dict[str, str],
    "prompt_cache_key": Name,
    "prompt_cache_retention": Name,
}

# annotations: of web searches, which there are none of.
REFUSED_MESSAGE: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": (),
    "annotations": ([],),
}
REFUSED: dict[str, tuple[Any, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "prompt_logprobs": (),
    "moderation": (),
}
REFUSED_CHAT: dict[str, tuple[Any, ...]] = {
    **REFUSED,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "stream_reasoning": (True,),
    "include_reasoning": (True,),
    "verbosity": ("medium",),
    "prompt_cache_options": (),
    "chat_template": (),
    "echo": (False,),
    "best_of": (1,),
}
REFUSED_COMPLETION: dict[str, tuple[Any, ...]] = {**REFUSED, "suffix": ("",)}


def read_chat(body: object) -> ChatRequest:
    """Raises InvalidRequest naming the field."""
    return _read(ChatRequest, body, REFUSED_CHAT)


def read_completion(body: object) -> CompletionRequest:
    """Raises InvalidRequest naming the field."""
    return _read(CompletionRequest, body, REFUSED_COMPLETION)


def _read(kind: type[Given], body: object, refused: dict[str, tuple[Any, ...]]) -> Given:
    if isinstance(body, dict):
        harmless = {name: body[name] for name in HARMLESS if name in body}
        read(_Harmless, harmless)
        body = {name: value for name, value in body.items() if name not in HARMLESS}
    return read(kind, body, refused=refused)


_Harmless = msgspec.defstruct(
    "_Harmless", [(name, kind | None, None) for name, kind in HARMLESS.items()], kw_only=True
)
