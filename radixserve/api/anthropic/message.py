"""The message that answers, whole and as events.

Owns: content blocks as they grow, their events in order, stop reasons, usage. Must not know: HTTP,
how a body is read, how a call is written.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from radixserve.api.turns.ask import Asked
from radixserve.api.turns.hearing import Heard, Hearing
from radixserve.chunks import Finish
from radixserve.native.calls import Calls
from radixserve.native.collect import completed
from radixserve.native.explained import cache_fields
from radixserve.native.reply import constraint_fields
from radixserve.text.tool_calls_stream import Argued, Begun, Said
from radixserve.wire.messages import FinishReason

Event = dict[str, Any]
PING: Event = {"type": "ping"}


class Content:
    """The blocks of one message. new_id: of a call."""

    def __init__(self, hearing: Hearing, new_id: Callable[[], str]) -> None:
        self._hearing = hearing
        self._new_id = new_id
        self._blocks: list[Event] = []
        self._arguments = ""
        self._is_open = False

    def add(self, text: str, is_last: bool) -> list[Event]:
        """Events of what `text` adds. is_last: no more comes."""
        events = [
            event for heard in self._hearing.add(text, is_last) for event in self._told(heard)
        ]
        return events + self._close() if is_last else events

    @property
    def blocks(self) -> list[Event]:
        """All of them, once the last text was added."""
        return self._blocks

    @property
    def has_calls(self) -> bool:
        return any(block["type"] == "tool_use" for block in self._blocks)

    def _told(self, heard: Heard) -> list[Event]:
        match heard:
            case Said(text):
                return self._grow({"type": "text", "text": ""}, "text", "text_delta", text)
            case Begun(_, name):
                block = {"type": "tool_use", "id": self._new_id(), "name": name, "input": {}}
                return [*self._close(), self._open(block)]
            case Argued(_, text):
                self._arguments += text
                return [self._delta({"type": "input_json_delta", "partial_json": text})]

    def _grow(self, block: Event, key: str, kind: str, text: str) -> list[Event]:
        """Text of a block that goes on as long as nothing else comes."""
        is_new = not self._is_open or self._blocks[-1]["type"] != block["type"]
        events = [*self._close(), self._open(block)] if is_new else []
        self._blocks[-1][key] += text
        return [*events, self._delta({"type": kind, key: text})]

    def _open(self, block: Event) -> Event:
        self._blocks.append(block)
        self._is_open = True
        self._arguments = ""
        return {"type": "content_block_start", "index": self._last, "content_block": dict(block)}

    def _delta(self, delta: Event) -> Event:
        return {"type": "content_block_delta", "index": self._last, "delta": delta}

    def _close(self) -> list[Event]:
        if not self._is_open:
            return []
        self._is_open = False
        block = self._blocks[-1]
        if block["type"] == "tool_use":
            block["input"] = _arguments(self._arguments)
        return [{"type": "content_block_stop", "index": self._last}]

    @property
    def _last(self) -> int:
        return len(self._blocks) - 1


def _arguments(text: str) -> Event:
    """{} where a stop sequence or the limit cut them."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One call, ready to run. room: tokens that prompt and output have together."""

    asked: Asked
    model: str
    room: int

    async def whole(self, calls: Calls) -> Event:
        """The answer. Raises RequestError; cancelling aborts what runs."""
        content = self._content()
        ended: Event = {}
        async with contextlib.aclosing(self.asked.start(calls)) as chunks:
            async for _, chunk in chunks:
                content.add(chunk.text, chunk.finish is not None)
                if chunk.finish is not None:
                    ended = self._ended(chunk.finish, content)
        return self._head() | {"content": content.blocks} | ended

    async def events(self, calls: Calls) -> AsyncGenerator[Event | None, None]:
        """The answer as events, first None: the call is accepted. Closing aborts what runs."""
        content = self._content()
        has_begun = has_block = False
        async with contextlib.aclosing(self.asked.start(calls)) as chunks:
            async for _, chunk in chunks:
                if not has_begun:
                    has_begun = True
                    yield None
                    yield {"type": "message_start", "message": self._opening()}
                for event in content.add(chunk.text, chunk.finish is not None):
                    yield event
                    if not has_block:
                        has_block = True
                        yield PING
                if chunk.finish is not None:
                    yield self._end_event(self._ended(chunk.finish, content))
        yield {"type": "message_stop"}

    def _content(self) -> Content:
        syntax = self.asked.syntax
        return Content(self.asked.hearing(), lambda: syntax.new_id("toolu_"))

    def _head(self) -> Event:
        return {
            "id": f"msg_{self.asked.request.rid}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
        }

    def _opening(self) -> Event:
        """What of the prompt is cached is not known yet; the last usage says it."""
        prompt_tokens = len(self.asked.request.prompt) // 4
        rest: Event = {"content": [], "stop_reason": None, "stop_sequence": None}
        return self._head() | rest | {"usage": _usage(prompt_tokens, 0, 0)}

    def _ended(self, finish: Finish, content: Content) -> Event:
        """stop_reason, stop_sequence, usage, and what is ours."""
        completed(finish)
        counts = finish.usage
        told: Event = {
            "stop_reason": self._stop_reason(finish, content),
            "stop_sequence": finish.matched if isinstance(finish.matched, str) else None,
            "usage": _usage(counts.prompt_tokens, counts.cached_tokens, counts.completion_tokens),
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


def _usage(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> Event:
    """input_tokens leaves out those that were cached. Whatever is computed is cached, so writing
    it is not counted apart."""
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    }
