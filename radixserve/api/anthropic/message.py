"""The message that answers, whole and as events.

Owns: the head of a message, the order of its events, stop reasons, usage. Must not know: HTTP, how
a body is read, what a block is.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from radixserve.api.anthropic.content import Content, Event
from radixserve.api.turns.ask import Asked
from radixserve.chunks import Chunk, Finish, Usage
from radixserve.native.calls import Calls
from radixserve.native.collect import completed
from radixserve.native.explained import cache_fields
from radixserve.native.reply import constraint_fields
from radixserve.wire.messages import FinishReason

PING: Event = {"type": "ping"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One call, ready to run. room: tokens that prompt and output have together. shows_thinking:
    see Content."""

    asked: Asked
    model: str
    room: int
    shows_thinking: bool = True

    async def whole(self, calls: Calls) -> Event:
        """The answer. Raises RequestError; cancelling aborts what runs."""
        content = self._content()
        ended: Event = {}
        async with contextlib.aclosing(self.asked.start(calls, whole=True)) as chunks:
            async for _, chunk in chunks:
                content.add(chunk.text, chunk.finish is not None)
                if chunk.finish is not None:
                    ended = self._ended(chunk.finish, content)
        return self._head() | {"content": content.blocks} | ended

    async def events(self, calls: Calls) -> AsyncGenerator[Event | None, None]:
        """The answer as events, first None: the call is accepted. Closing aborts what runs.

        The first event tells what of the prompt was cached, so all wait until that is known.
        """
        content = self._content()
        waiting: list[Event] | None = []
        is_accepted = has_block = False
        async with contextlib.aclosing(self.asked.start(calls)) as chunks:
            async for _, chunk in chunks:
                if not is_accepted:
                    is_accepted = True
                    yield None
                news = content.add(chunk.text, chunk.finish is not None)
                if waiting is not None:
                    waiting += news
                    cached = _cached(chunk)
                    if cached is None:
                        continue
                    news, waiting = waiting, None
                    yield {"type": "message_start", "message": self._opening(cached)}
                for event in news:
                    yield event
                    if not has_block:
                        has_block = True
                        yield PING
                if chunk.finish is not None:
                    yield self._end_event(self._ended(chunk.finish, content))
        yield {"type": "message_stop"}

    def _content(self) -> Content:
        syntax = self.asked.syntax
        return Content(
            self.asked.hearing(),
            lambda: syntax.new_id("toolu_"),
            shows_thinking=self.shows_thinking,
        )

    def _head(self) -> Event:
        return {
            "id": f"msg_{self.asked.request.rid}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
        }

    def _opening(self, cached: int) -> Event:
        count = len(self.asked.request.prompt) // 4
        usage = Usage(
            prompt_tokens=count,
            completion_tokens=0,
            cached_tokens=cached,
            computed_tokens=count - cached,
        )
        rest: Event = {"content": [], "stop_reason": None, "stop_sequence": None}
        return self._head() | rest | {"usage": _usage(usage)}

    def _ended(self, finish: Finish, content: Content) -> Event:
        """stop_reason, stop_sequence, usage, and what is ours."""
        completed(finish)
        told: Event = {
            "stop_reason": self._stop_reason(finish, content),
            "stop_sequence": finish.matched if isinstance(finish.matched, str) else None,
            "usage": _usage(finish.usage),
            **constraint_fields(finish),
        }
        if finish.cache is not None:
            prompt = self.asked.request.prompt
            told["cache"] = cache_fields(finish.cache, prompt, self.asked.tokenizer)
        return told

    def _stop_reason(self, finish: Finish, content: Content) -> str:
        if finish.reason is FinishReason.LENGTH:
            wanted = finish.usage.prompt_tokens + self.asked.request.params.max_new_tokens
            return "max_tokens" if wanted <= self.room else "model_context_window_exceeded"
        if isinstance(finish.matched, str):
            return "stop_sequence"
        return "tool_use" if content.has_calls else "end_turn"

    @staticmethod
    def _end_event(ended: Event) -> Event:
        delta = {name: ended.pop(name) for name in ("stop_reason", "stop_sequence")}
        return {"type": "message_delta", "delta": delta, **ended}


def _cached(chunk: Chunk) -> int | None:
    return chunk.cached_tokens if chunk.finish is None else chunk.finish.usage.cached_tokens


def _usage(usage: Usage) -> Event:
    """input_tokens leaves out those that were cached. Whatever is computed is cached, so writing
    it is not counted apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
