"""What chat and completions answers share.

Owns: the counts of a reply, finish reasons by their OpenAI names, the head of every object. Must
not know: one endpoint's choices.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from radixserve.chunks import Chunk, Finish, Request, Usage
from radixserve.native import bound
from radixserve.native.calls import Calls, Numbered
from radixserve.native.collect import completed
from radixserve.native.collect import total as total_usage
from radixserve.native.constraint import Wish
from radixserve.native.explained import cache_fields
from radixserve.native.reply import constraint_fields
from radixserve.text.tokenizer import Tokenizer

Event = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """model: as served. rid: of the call. show_usage: a stream ends with the counts."""

    model: str
    rid: str
    show_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))


class Reply(Protocol):
    """Turns the chunks of a call into choices.

    id_prefix: of the reply's id. kind, chunk_kind: what `object` says, whole and streamed.
    """

    id_prefix: str
    kind: str
    chunk_kind: str

    def begin(self) -> list[Event]:
        """Streamed choices to send when the call is accepted."""

    def add(self, position: int, chunk: Chunk) -> list[Event]:
        """Streamed choices with what `chunk` of prompt `position` adds."""

    def choices(self) -> list[Event]:
        """The choices of the whole answer, once all chunks were added."""


class Counts:
    """Usage of a whole call: each prompt once, outputs summed. Adding an aborted output raises."""

    def __init__(self, requests: Sequence[Request], tokenizer: Tokenizer) -> None:
        self._requests = requests
        self._tokenizer = tokenizer
        self._usages: list[list[Usage]] = [[] for _ in requests]
        self._reports: dict[int, Event] = {}

    def add(self, position: int, chunk: Chunk) -> None:
        if chunk.finish is not None:
            completed(chunk.finish)
            self._usages[position].append(chunk.finish.usage)
            if chunk.finish.cache is not None:
                prompt = self._requests[position].prompt
                self._reports[position] = cache_fields(chunk.finish.cache, prompt, self._tokenizer)

    def explanations(self) -> Event:
        """One for each prompt, where they were asked for."""
        reports = [self._reports[position] for position in sorted(self._reports)]
        return {"cache": reports} if reports else {}

    def fields(self) -> Event:
        return usage_fields(total_usage(usages) for usages in self._usages)


@dataclass(frozen=True, slots=True)
class Job:
    """A call ready to run: its requests, and who makes the answer of their chunks.

    wish: what all outputs are to be bound to. tokenizer: for what is told of the cache.
    """

    requests: tuple[Request, ...]
    head: Head
    reply: Reply
    wish: Wish | None
    tokenizer: Tokenizer

    async def whole(self, calls: Calls) -> Event:
        """The answer. Raises RequestError; cancelling aborts what runs."""
        counts = Counts(self.requests, self.tokenizer)
        async with contextlib.aclosing(self._started(calls, whole=True)) as chunks:
            async for position, chunk in chunks:
                counts.add(position, chunk)
                self.reply.add(position, chunk)
        whole = self._object(self.reply.kind, self.reply.choices())
        return whole | {"usage": counts.fields(), **counts.explanations()}

    async def events(self, calls: Calls) -> AsyncGenerator[Event | None, None]:
        """The answer as events, first None: the call is accepted. Closing aborts what runs.

        What is told of the cache comes last, with the usage if that is told.
        """
        counts = Counts(self.requests, self.tokenizer)
        begun = False
        async with contextlib.aclosing(self._started(calls)) as chunks:
            async for position, chunk in chunks:
                news = [] if begun else self.reply.begin()
                if not begun:
                    begun = True
                    yield None
                counts.add(position, chunk)
                for choice in [*news, *self.reply.add(position, chunk)]:
                    yield self._event([choice], None)
        told = counts.explanations()
        if self.head.show_usage or told:
            yield self._event([], counts.fields()) | told

    def _started(self, calls: Calls, *, whole: bool = False) -> Numbered:
        wishes = [self.wish] * len(self.requests)
        return bound.start(calls, self.requests, self.head.rid, wishes, whole=whole)

    def _event(self, choices: list[Event], usage: Event | None) -> Event:
        event = self._object(self.reply.chunk_kind, choices)
        return event | {"usage": usage} if self.head.show_usage else event

    def _object(self, kind: str, choices: list[Event]) -> Event:
        return {
            "id": f"{self.reply.id_prefix}-{self.head.rid}",
            "object": kind,
            "created": self.head.created,
            "model": self.head.model,
            "choices": choices,
        }


def usage_fields(usages: Iterable[Usage]) -> Event:
    each = list(usages)
    prompt_tokens = sum(usage.prompt_tokens for usage in each)
    completion_tokens = sum(usage.completion_tokens for usage in each)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in each)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(usage.reasoning_tokens for usage in each),
            "forced_tokens": sum(usage.forced_tokens for usage in each),
        },
    }


def ending(finish: Finish) -> Event:
    """What the end of a choice adds to it. finish_reason: "stop" or "length"; an abort never comes
    so far, it is an error."""
    completed(finish)
    return {"finish_reason": finish.reason.value, **constraint_fields(finish)}
