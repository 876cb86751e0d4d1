"""The fields of POST /v1/responses.

Owns: which fields there are, their types and defaults, which are refused, which are taken and have
no effect. Must not know: how a request is served, what an item says.

Fields stand in the places that openai/schema.py tells of.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

import msgspec

from radixserve.api.turns.ask import Labelled
from radixserve.errors import InvalidRequest
from radixserve.native.fields import Name, read
from radixserve.wire.params import MAX_TOP_LOGPROBS

LOGPROBS = "message.output_text.logprobs"
# What these add to a reply there is none of here: built-in tools, images. Reasoning that is not
# encrypted stands in its item, which is as good for the next turn.
INCLUDED = frozenset(
    {"file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
     "message.input_image.image_url", "computer_call_output.output.image_url",
     "code_interpreter_call.outputs", "reasoning.encrypted_content", LOGPROBS}
)  # fmt: skip
MAX_LABELS = 16

Key = Annotated[str, msgspec.Meta(max_length=64)]
Value = Annotated[str, msgspec.Meta(max_length=512)]
Token = Annotated[int, msgspec.Meta(ge=1)]


class Told(Protocol):
    """What a model is told, which is what a count is of."""

    input: str | list[Any]
    instructions: str | None
    previous_response_id: str | None
    tools: list[Any]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    text: dict[str, Any]
    reasoning: dict[str, Any]
    chat_template_kwargs: dict[str, Any]


class InputTokensRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A body of /v1/responses/input_tokens; see ResponseRequest."""

    input: str | list[Any] = []
    model: str = ""
    instructions: str | None = None
    previous_response_id: Name | None = None
    tools: list[Any] = []
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    text: dict[str, Any] = {}
    reasoning: dict[str, Any] = {}
    chat_template_kwargs: dict[str, Any] = {}


class ResponseRequest(Labelled, msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A body of /v1/responses.

    input: a user's text, or items, see items.py. instructions: what the system says first, in this
    response alone. tools, tool_choice, parallel_tool_calls: see tools.py. text, reasoning: see
    exchange.py. store: None where the server keeps replies. max_output_tokens: without it
    config.http.default_max_tokens holds. metadata, user, safety_identifier, prompt_cache_key:
    labels, which come back. thinking_token_budget, top_k to chat_template_kwargs, and all of
    Labelled, are ours: see SamplingParams, and turns/reasoning.py.
    """

    input: str | list[Any]
    model: str = ""
    instructions: str | None = None
    previous_response_id: Name | None = None
    tools: list[Any] = []
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    text: dict[str, Any] = {}
    reasoning: dict[str, Any] = {}
    store: bool | None = None
    stream: bool = False
    max_output_tokens: Token | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    include: list[str] = []
    top_logprobs: int = 0
    thinking_token_budget: int | None = None
    metadata: dict[Key, Value] = {}
    user: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    top_k: int = -1
    min_p: float = 0.0
    stop: str | list[str] = []
    seed: int | None = None
    chat_template_kwargs: dict[str, Any] = {}

    @property
    def best(self) -> int | None:
        """How many of the likeliest tokens are told beside each; None: no log-probabilities."""
        return self.top_logprobs if LOGPROBS in self.include else None


REFUSED: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "prompt_cache_options": (),
    "service_tier": ("auto", "default"),
    "stream_options": ({}, {"include_obfuscation": False}),
    "truncation": ("disabled",),
}
REFUSED_COUNT: dict[str, tuple[Any, ...]] = {
    "conversation": (),
    "personality": (),
    "truncation": ("disabled",),
}
# A hint for finding the cache, which here is found by the prompt itself.
HARMLESS: dict[str, Any] = {"prompt_cache_retention": Literal["in_memory", "24h"]}


def read_response(body: object) -> ResponseRequest:
    """Raises InvalidRequest naming the field."""
    if isinstance(body, dict):
        read(_Harmless, {name: body[name] for name in HARMLESS if name in body})
        body = {name: value for name, value in body.items() if name not in HARMLESS}
    given = read(ResponseRequest, body, refused=REFUSED)
    if len(given.metadata) > MAX_LABELS:
        raise InvalidRequest(
            f"metadata has {len(given.metadata)} entries, {MAX_LABELS} are possible",
            param="metadata",
        )
    for i, name in enumerate(given.include):
        if name not in INCLUDED:
            raise InvalidRequest(
                f"include is among {', '.join(sorted(INCLUDED))}, not {name!a:.80}",
                param=f"include[{i}]",
            )
    _check_logprobs(given)
    return given


def read_count(body: object) -> InputTokensRequest:
    """Raises InvalidRequest naming the field."""
    return read(InputTokensRequest, body, refused=REFUSED_COUNT)


def _check_logprobs(given: ResponseRequest) -> None:
    if not 0 <= given.top_logprobs <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs must be from 0 to {MAX_TOP_LOGPROBS}", param="top_logprobs"
        )
    if given.top_logprobs and given.best is None:
        raise InvalidRequest(f'top_logprobs needs include: ["{LOGPROBS}"]', param="top_logprobs")


_Harmless = msgspec.defstruct(
    "_Harmless", [(name, kind | None, None) for name, kind in HARMLESS.items()], kw_only=True
)
