"""What a running program tells: chunks and replies of its calls, as they come.

Owns: the events of calls, and that a reader who is slow misses no reply and holds no pile of
chunks. Must not know: who reads them, HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any

from radixserve.lang.backends.base import Backend, Reply
from radixserve.lang.calls import Call, Caller, Deadline, OnChunk

Event = dict[str, Any]


class Told:
    """Events not yet read. A chunk holds all text so far, so only a call's newest is kept."""

    def __init__(self, whole: bool) -> None:
        self.ended: list[Event] = []
        self._whole = whole
        self._waiting: dict[tuple[str, str], Event] = {}
        self._news = asyncio.Event()
        self._is_over = False

    def chunk(self, call: Call, chunk: Reply) -> None:
        told = without_prompt(chunk) if self._whole else {"text": chunk.get("text", "")}
        self._tell("chunk", call, {"chunk": told})

    def reply(self, call: Call, reply: Any) -> None:
        event: Event = {"kind": call.kind, "parent": call.body["program"]["parent"]}
        event |= {"started": call.started, "seconds": call.seconds, "tries": call.tries}
        replies = reply if isinstance(reply, list) else [reply]
        if call.kind == "generate":
            texts = [each["text"] for each in replies]
            event["text"] = texts if isinstance(reply, list) else texts[0]
            if "tool_calls" in replies[0]:
                calls = [each["tool_calls"] for each in replies]
                event["tool_calls"] = calls if isinstance(reply, list) else calls[0]
        if self._whole:
            stripped = [without_prompt(each) for each in replies]
            event["reply"] = stripped if isinstance(reply, list) else stripped[0]
        self._end(call, event)

    def failure(self, call: Call, error: BaseException) -> None:
        self._end(call, {"error": error, "seconds": call.seconds, "tries": call.tries})

    def over(self) -> None:
        """Nothing more comes."""
        self._is_over = True
        self._news.set()

    async def next(self) -> list[Event]:
        """What is new, once something is; [] at the end."""
        while not self._waiting and not self._is_over:
            await self._news.wait()
            self._news.clear()
        events, self._waiting = list(self._waiting.values()), {}
        return events

    def _end(self, call: Call, event: Event) -> None:
        self._waiting.pop(("chunk", call.body["program"]["call"]), None)
        self.ended.append(self._tell("end", call, event))

    def _tell(self, kind: str, call: Call, event: Event) -> Event:
        place = call.body["program"]["call"]
        told = {"call": place, "name": call.name, **event}
        self._waiting[kind, place] = told
        self._news.set()
        return told


class TellingCaller(Caller):
    """Makes the calls of a run and tells of them."""

    def __init__(self, backend: Backend, retries: int, deadline: Deadline, told: Told) -> None:
        super().__init__(backend, retries, deadline)
        self._told = told

    async def aperform(self, call: Call, on_chunk: OnChunk) -> Any:
        def pass_on(chunk: Reply) -> None:
            self._told.chunk(call, chunk)
            on_chunk(chunk)

        try:
            reply = await super().aperform(call, pass_on)
        except Exception as error:
            self._told.failure(call, error)
            raise
        self._told.reply(call, reply)
        return reply


def without_prompt(reply: Reply) -> Reply:
    """A reply without its prompt's ids, which only who makes the next call needs."""
    meta = {name: value for name, value in reply["meta_info"].items() if name != "prompt"}
    return {**reply, "meta_info": meta}
