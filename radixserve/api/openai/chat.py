"""POST /v1/chat/completions.

Owns: from messages to a request, from chunks to chat choices. Must not know: HTTP, templates.
"""

from __future__ import annotations

from typing import Any

from radixserve.api.openai.common import Event, Head, Job, ending
from radixserve.api.openai.constraint import output_limit, wish_of
from radixserve.api.openai.logprobs import ChatLogprobs
from radixserve.api.openai.sampling import sampling_params, stream_options
from radixserve.api.openai.schema import (
    REFUSED_MESSAGE,
    ROLES,
    ChatRequest,
    Message,
    ToolCall,
)
from radixserve.api.openai.turn import Turn
from radixserve.api.turns.ask import Ask, prepare
from radixserve.api.turns.reasoning import SWITCHES, Thoughts
from radixserve.chunks import Chunk, Finish
from radixserve.errors import InvalidRequest
from radixserve.native.calls import Door
from radixserve.native.fields import read
from radixserve.native.tools import toolbox_of
from radixserve.text.tokenizer import Tokenizer
from radixserve.wire.params import MAX_TOP_LOGPROBS

MAX_MESSAGES = 10_000
# These have fields of their own.
RESERVED_VARIABLES = frozenset({"add_generation_prompt", "continue_final_message", "tools"})


def chat_job(given: ChatRequest, gateway: Door, default_max_tokens: int) -> Job:
    """Check, render and tokenise. Takes time in the length of the text: call in a thread.

    Raises InvalidRequest naming the field at fault.
    """
    options = stream_options(given)
    asked = prepare(_ask(given, default_max_tokens), gateway)
    request = asked.request
    has_logprobs = request.output_logprobs is not None
    choices = [
        ChatChoice(i, asked.tokenizer, has_logprobs, Turn(asked.hearing(), asked.syntax.new_id))
        for i in range(request.params.n)
    ]
    head = Head(model=gateway.model_name, rid=request.rid, show_usage=options.include_usage)
    return Job((request,), head, ChatReply(choices), asked.wish, asked.tokenizer)


def _ask(given: ChatRequest, default_max_tokens: int) -> Ask:
    params = sampling_params(given, default_max_tokens)
    best = _best(given)
    reserved = RESERVED_VARIABLES & given.chat_template_kwargs.keys()
    if reserved:
        raise InvalidRequest(
            f"chat_template_kwargs may not set {min(reserved)}", param="chat_template_kwargs"
        )
    box = toolbox_of(given)
    if given.field_logprobs and box.names:
        raise InvalidRequest(
            "field_logprobs and tools exclude each other: a call has no fields of the answer",
            param="field_logprobs",
            code="conflicting_parameters",
        )
    return Ask(
        messages=read_messages(given.messages),
        params=params,
        limit=output_limit(given),
        labels=given,
        box=box,
        answer=wish_of(given),
        best=best,
        shows_special=not given.skip_special_tokens,
        keeps_stop=given.no_stop_trim or given.include_stop_str_in_output,
        add_generation_prompt=given.add_generation_prompt,
        continue_final_message=given.continue_final_message,
        variables=given.chat_template_kwargs,
        thoughts=_thoughts(given),
    )


def _thoughts(given: ChatRequest) -> Thoughts:
    switches = [given.chat_template_kwargs.get(name) for name in SWITCHES]
    return Thoughts(
        separates=given.separate_reasoning,
        budget=given.thinking_token_budget,
        effort=given.reasoning_effort,
        is_on=next((switch for switch in switches if isinstance(switch, bool)), None),
    )


class ChatReply:
    """All choices of one chat call."""

    id_prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, choices: list[ChatChoice]) -> None:
        self._choices = choices

    def begin(self) -> list[Event]:
        return [choice.opening() for choice in self._choices]

    def add(self, position: int, chunk: Chunk) -> list[Event]:
        del position  # chat has one prompt
        return self._choices[chunk.index].add(chunk)

    def choices(self) -> list[Event]:
        return [choice.whole() for choice in self._choices]


class ChatChoice:
    """One choice as it grows."""

    def __init__(self, index: int, tokenizer: Tokenizer, has_logprobs: bool, turn: Turn) -> None:
        self._index = index
        self._turn = turn
        self._logprobs = ChatLogprobs(tokenizer) if has_logprobs else None
        self._entries: list[dict[str, Any]] = []
        self._ending: Event = {"finish_reason": None}

    def opening(self) -> Event:
        return self._delta(self._turn.opening(), [])

    def add(self, chunk: Chunk) -> list[Event]:
        entries: list[dict[str, Any]] = []
        if self._logprobs is not None and chunk.logprobs is not None:
            scores = chunk.logprobs
            entries = self._logprobs.entries(chunk.ids, scores.chosen, scores.top_ids, scores.top)
        self._entries += entries
        deltas = self._turn.add(chunk.text, chunk.finish is not None)
        if entries and not deltas:
            deltas = [{}]
        news = [self._delta(delta, [] if i else entries) for i, delta in enumerate(deltas)]
        if chunk.finish is not None:
            self._ending = self._ended(chunk.finish)
            news.append(self._delta({}, []) | self._ending)
        return news

    def _ended(self, finish: Finish) -> Event:
        told = ending(finish)
        if told["finish_reason"] == "stop" and self._turn.has_calls:
            told["finish_reason"] = "tool_calls"
        return told

    def whole(self) -> Event:
        return {
            "index": self._index,
            "message": self._turn.message(),
            "logprobs": None if self._logprobs is None else _logprobs(self._entries),
            **self._ending,
        }

    def _delta(self, delta: Event, entries: list[dict[str, Any]]) -> Event:
        return {
            "index": self._index,
            "delta": delta,
            "logprobs": _logprobs(entries) if entries else None,
            "finish_reason": None,
        }


def _logprobs(entries: list[dict[str, Any]]) -> Event:
    return {"content": entries, "refusal": None}


def _best(given: ChatRequest) -> int | None:
    if not 0 <= given.top_logprobs <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs must be from 0 to {MAX_TOP_LOGPROBS}", param="top_logprobs"
        )
    if given.top_logprobs and not given.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    return given.top_logprobs if given.logprobs else None


def read_messages(given: list[Any]) -> list[dict[str, Any]]:
    """The messages of a body, checked. Raises InvalidRequest naming the place."""
    if not 1 <= len(given) <= MAX_MESSAGES:
        raise InvalidRequest(
            f"messages has {len(given)} entries; from 1 to {MAX_MESSAGES} are allowed",
            param="messages",
        )
    return [_message(raw, f"messages[{i}]") for i, raw in enumerate(given)]


def _message(raw: object, at: str) -> dict[str, Any]:
    """The fields that were given, checked; null content is the text room's to read."""
    message = read(Message, raw, at=at, refused=REFUSED_MESSAGE)
    if message.role not in ROLES:
        raise InvalidRequest(
            f"{at}.role must be one of {', '.join(ROLES)}, not {message.role!a}",
            param=f"{at}.role",
        )
    if message.content is None and (message.role != "assistant"):
        raise InvalidRequest(f"{at}.content is missing", param=f"{at}.content")
    if message.content == []:
        raise InvalidRequest(f"{at}.content has no parts", param=f"{at}.content")
    calls = [
        _call(call, f"{at}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls or ())
    ]
    given = {name: getattr(message, name) for name in message.__struct_fields__}
    given["reasoning_content"] = given["reasoning_content"] or given.pop("reasoning")
    if calls:
        given["tool_calls"] = calls
    return {name: value for name, value in given.items() if value is not None and name != "parsed"}


def _call(raw: object, at: str) -> dict[str, Any]:
    """A call of an earlier turn, with what templates show of it."""
    call = read(ToolCall, raw, at=at)
    arguments = call.function.arguments
    function = {"name": call.function.name, "arguments": "" if arguments is None else arguments}
    told = {"type": call.type, "function": function}
    return {"id": call.id, **told} if call.id else told
