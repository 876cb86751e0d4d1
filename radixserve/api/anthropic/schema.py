"""The fields of the Anthropic dialect.

Owns: which fields exist on /v1/messages and /v1/messages/count_tokens, their types and defaults,
which are refused. Must not know: what messages and tools mean, how a request is served.

A field is in exactly one of these places: in the struct, or in REFUSED with the values that ask for
nothing. Any other name is a 400. null always means absent.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeVar

import msgspec

from radixserve.api.turns.ask import Labelled
from radixserve.errors import InvalidRequest
from radixserve.native.fields import Name, read
from radixserve.wire.params import SamplingParams

Given = TypeVar("Given", bound=msgspec.Struct)


class CacheControl(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A hint, wherever it stands: the cache here finds every shared prefix by itself, and keeps it
    as long as there is room."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Metadata(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """user_id: a label; it changes nothing."""

    user_id: Name | None = None


class Told(Protocol):
    """What a model is told, which is what a count is of."""

    messages: list[Any]
    model: str
    system: str | list[Any]
    tools: list[Any]
    tool_choice: dict[str, Any] | None
    thinking: dict[str, Any] | None
    output_config: dict[str, Any] | None
    output_format: dict[str, Any] | None


class CountRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A body of /v1/messages/count_tokens; see MessagesRequest."""

    messages: list[Any]
    model: str = ""
    system: str | list[Any] = ""
    tools: list[Any] = []
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    cache_control: CacheControl | None = None


class MessagesRequest(Labelled, msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A body of /v1/messages. messages, system: see conversation.py. tools, tool_choice: see
    tools.py. thinking: see thinking.py. output_config, output_format: see ask.py. All of Labelled
    is ours."""

    messages: list[Any]
    max_tokens: int
    model: str = ""
    system: str | list[Any] = ""
    tools: list[Any] = []
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    cache_control: CacheControl | None = None
    metadata: Metadata | None = None
    stop_sequences: list[str] = []
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stream: bool = False


_KEEP_ALL = {"type": "clear_thinking_20251015", "keep": "all"}
REFUSED_COUNT: dict[str, tuple[Any, ...]] = {
    "speed": ("standard",),
    "user_profile_id": (),
    "workspace_id": (),
    "mcp_servers": ([],),
    "context_management": ({}, {"edits": []}, {"edits": [_KEEP_ALL]}),
    "compaction": (),
    "billing_policy": (),
}
REFUSED: dict[str, tuple[Any, ...]] = {
    **REFUSED_COUNT,
    "service_tier": ("auto", "standard_only"),
    "inference_geo": (),
    "container": (),
    "diagnostics": ({}, {"previous_message_id": None}),
    "fallbacks": ([],),
    "fallback_credit_token": (),
    "thread": (False,),
}


def read_messages(body: object) -> MessagesRequest:
    """Raises InvalidRequest naming the field."""
    return _read(MessagesRequest, body, REFUSED)


def read_count(body: object) -> CountRequest:
    """Raises InvalidRequest naming the field."""
    return _read(CountRequest, body, REFUSED_COUNT)


def _read(kind: type[Given], body: object, refused: dict[str, tuple[Any, ...]]) -> Given:
    return read(kind, body, refused=refused)


_OUR_NAMES = {"max_new_tokens": "max_tokens", "stop": "stop_sequences"}


def sampling_params(given: MessagesRequest) -> SamplingParams:
    """Raises InvalidRequest naming the parameter as the client knows it."""
    if not 0 <= given.temperature <= 1:
        raise InvalidRequest("temperature must be from 0 to 1", param="temperature")
    if given.max_tokens < 1:
        raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
    if given.top_k < 0:
        raise InvalidRequest("top_k must be at least 0", param="top_k")
    try:
        return SamplingParams(
            max_new_tokens=given.max_tokens,
            temperature=given.temperature,
            top_k=given.top_k,
            top_p=given.top_p,
            stop=tuple(given.stop_sequences),
        )
    except InvalidRequest as error:
        raise _renamed(error) from None


def _renamed(error: InvalidRequest) -> InvalidRequest:
    theirs = _OUR_NAMES.get(error.param or "")
    if theirs is None:
        return error
    message = error.message.replace(str(error.param), theirs, 1)
    return InvalidRequest(message, param=theirs, code=error.code)
