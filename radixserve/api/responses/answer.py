"""The response object, while it grows and at its end.

Owns: its fields and its status, the numbers of its events. Must not know: HTTP, where responses are
kept.
"""

from __future__ import annotations

import time
from typing import Any, Literal

from radixserve.api.faults import envelope
from radixserve.api.openai.logprobs import ChatLogprobs
from radixserve.api.responses.exchange import Exchange
from radixserve.api.responses.items import Item
from radixserve.api.responses.output import Entry, Event, Output
from radixserve.chunks import Chunk, Finish, Usage
from radixserve.native.explained import cache_fields
from radixserve.native.reply import constraint_fields
from radixserve.wire.messages import FinishReason

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
_LAST: dict[Status, str] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",  # the dialect has no event of its own for it
    "failed": "response.failed",
}


class Answer:
    """What comes of one exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.status: Status = "in_progress"
        self._hearing = exchange.asked.hearing()
        self._output = Output(exchange.asked.syntax.new_id)
        has_logprobs = exchange.body.best is not None
        self._logprobs = ChatLogprobs(exchange.asked.tokenizer) if has_logprobs else None
        self._number = 0
        self._ending: Event = {}
        self._error: Event | None = None
        self._completed_at: int | None = None

    def begin(self) -> list[Event]:
        """Events when the request is accepted."""
        kinds = ("response.created", "response.in_progress")
        return self._numbered([{"type": kind, "response": self.object()} for kind in kinds])

    def add(self, chunk: Chunk) -> list[Event]:
        """Events of what `chunk` adds; the last event of all is end()'s."""
        heard = self._hearing.add(chunk.text, chunk.finish is not None)
        events = self._output.add(heard, self._entries(chunk))
        if chunk.finish is not None:
            events += self._finish(chunk.finish)
        return self._numbered(events)

    def end(self, *, is_kept: bool) -> Event:
        """The last event."""
        [event] = self._numbered(
            [{"type": _LAST[self.status], "response": self.object(is_kept=is_kept)}]
        )
        return event

    def fail(self, error: BaseException) -> None:
        """It ends with `error`."""
        self.status = "failed"
        status, body = envelope(error)
        code = "rate_limit_exceeded" if status == 429 else "server_error"
        self._error = {"code": code, "message": body["error"]["message"]}

    def object(self, *, is_kept: bool | None = None) -> Event:
        """The response as it stands. is_kept: None where that is not known yet."""
        exchange, body = self.exchange, self.exchange.body
        part: Literal["in_progress", "incomplete"] = (
            "in_progress" if self.status == "in_progress" else "incomplete"
        )
        return {
            "id": exchange.id,
            "object": "response",
            "created_at": exchange.created,
            "status": self.status,
            "completed_at": self._completed_at,
            "error": self._error,
            "incomplete_details": self._incomplete(),
            "model": exchange.model,
            "output": list(self._output.items(part)),
            **_echoed(exchange),
            "store": exchange.store if is_kept is None else is_kept,
            "usage": None,
            "metadata": body.metadata,
            **self._ending,
        }

    @property
    def items(self) -> list[Item]:
        """What it has said."""
        return self._output.items("incomplete")

    def _entries(self, chunk: Chunk) -> list[Entry]:
        if self._logprobs is None or chunk.logprobs is None:
            return []
        scores = chunk.logprobs
        return self._logprobs.entries(chunk.ids, scores.chosen, scores.top_ids, scores.top)

    def _finish(self, finish: Finish) -> list[Event]:
        asked = self.exchange.asked
        match finish.reason:
            case FinishReason.STOP:
                self.status = "completed"
                self._completed_at = int(time.time())
            case FinishReason.LENGTH:
                self.status = "incomplete"
            case _:
                self.status = "cancelled"
        is_complete = self.status == "completed"
        events = self._output.close("completed" if is_complete else "incomplete")
        if is_complete:
            events += self._output.say_nothing()
        self._ending = {"usage": usage_fields(finish.usage), **constraint_fields(finish)}
        if finish.cache is not None:
            told = cache_fields(finish.cache, asked.request.prompt, asked.tokenizer)
            self._ending["cache"] = [told]
        return events

    def _incomplete(self) -> Event | None:
        return {"reason": "max_output_tokens"} if self.status == "incomplete" else None

    def _numbered(self, events: list[Event]) -> list[Event]:
        numbered = []
        for event in events:
            numbered.append(event | {"sequence_number": self._number})
            self._number += 1
        return numbered


def usage_fields(usage: Usage) -> Event:
    """Whatever is computed is cached, so writing it is not counted apart."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "forced_tokens": usage.forced_tokens,
        },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _echoed(exchange: Exchange) -> dict[str, Any]:
    """What was asked, as it holds."""
    body = exchange.body
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None, **body.reasoning},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "temperature": body.temperature,
        "text": {"format": {"type": "text"}, "verbosity": "medium", **body.text},
        "tool_choice": body.tool_choice,
        "tools": [
            {"description": None, "parameters": None, "strict": True, **tool} for tool in body.tools
        ],
        "top_logprobs": body.top_logprobs,
        "top_p": body.top_p,
        "truncation": "disabled",
        "user": body.user,
    }
