"""The content blocks of a message as they grow.

Owns: blocks, their events in order, the signature of what was thought. Must not know: messages,
usage, how a call is written.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Any

from radixserve.native.hearing import Heard, Hearing
from radixserve.text.reasoning import Thought
from radixserve.text.tool_calls_stream import Argued, Begun, Said

Event = dict[str, Any]


class Content:
    """new_id: of a call. shows_thinking: blocks of thinking have their text."""

    def __init__(
        self, hearing: Hearing, new_id: Callable[[], str], *, shows_thinking: bool = True
    ) -> None:
        self._hearing = hearing
        self._new_id = new_id
        self._shows_thinking = shows_thinking
        self._blocks: list[Event] = []
        self._is_open = False
        self._hidden = ""  # of the open block, what it does not show yet: arguments, thoughts

    def add(self, text: str, is_last: bool) -> list[Event]:
        """Events of what `text` adds. is_last: no more comes."""
        heard = self._hearing.add(text, is_last)
        events = [event for each in heard for event in self._told(each)]
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
            case Thought(text):
                return self._think(text)
            case Said(text):
                events = self._go_on({"type": "text", "text": ""})
                self._blocks[-1]["text"] += text
                return [*events, self._delta({"type": "text_delta", "text": text})]
            case Begun(_, name):
                block = {"type": "tool_use", "id": self._new_id(), "name": name, "input": {}}
                return [*self._close(), self._open(block)]
            case Argued(_, text):
                self._hidden += text
                return [self._delta({"type": "input_json_delta", "partial_json": text})]

    def _think(self, text: str) -> list[Event]:
        events = self._go_on({"type": "thinking", "thinking": "", "signature": ""})
        self._hidden += text
        if not self._shows_thinking:
            return events
        self._blocks[-1]["thinking"] += text
        return [*events, self._delta({"type": "thinking_delta", "thinking": text})]

    def _go_on(self, block: Event) -> list[Event]:
        """With the open block if it is of the same type, else with `block`."""
        if self._is_open and self._blocks[-1]["type"] == block["type"]:
            return []
        return [*self._close(), self._open(block)]

    def _open(self, block: Event) -> Event:
        self._blocks.append(block)
        self._is_open = True
        self._hidden = ""
        return {"type": "content_block_start", "index": self._last, "content_block": dict(block)}

    def _delta(self, delta: Event) -> Event:
        return {"type": "content_block_delta", "index": self._last, "delta": delta}

    def _close(self) -> list[Event]:
        if not self._is_open:
            return []
        self._is_open = False
        block, events = self._blocks[-1], []
        if block["type"] == "tool_use":
            block["input"] = _arguments(self._hidden)
        elif block["type"] == "thinking":
            block["signature"] = _signature(self._hidden)
            signed = {"type": "signature_delta", "signature": block["signature"]}
            events.append(self._delta(signed))
        return [*events, {"type": "content_block_stop", "index": self._last}]

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


def _signature(thoughts: str) -> str:
    """A digest: clients keep blocks that have a signature, and nobody checks it."""
    return base64.b64encode(hashlib.sha256(thoughts.encode()).digest()).decode()
