"""What a response says, as items and as the events that tell of them.

Owns: the items of an output as it grows, the order and the fields of their events. Must not know:
the response around them, how text becomes speech.

An item is closed before the next one begins; each has all its events together, in the order
added, (part added,) deltas, done, (part done,) item done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, assert_never

from radixserve.api.responses.items import Item, Status, new_id
from radixserve.text.reasoning import Event as Heard
from radixserve.text.reasoning import Thought
from radixserve.text.tool_calls_stream import Argued, Begun, Said

Event = dict[str, Any]
Entry = dict[str, Any]  # the log-probabilities of one token


class _Open(Protocol):
    """The item that grows."""

    id: str

    def opening(self) -> list[Event]: ...
    def more(self, text: str, entries: list[Entry]) -> list[Event]: ...
    def closing(self, entries: list[Entry]) -> list[Event]: ...
    def item(self, status: Status) -> Item: ...


class Output:
    """Items in their order. new_call_id: of a call."""

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self._new_call_id = new_call_id
        self._closed: list[Item] = []
        self._open: _Open | None = None
        self._entries: list[Entry] = []  # of text that is not told yet

    def add(self, heard: Sequence[Heard], entries: Sequence[Entry]) -> list[Event]:
        """Events of what `heard` adds. entries: of the tokens that it took."""
        self._entries += entries
        events: list[Event] = []
        for i, piece in enumerate(heard):
            match piece:
                case Thought(text):
                    events += self._go_on(_Reasoning, text)
                case Said(text):
                    if any(isinstance(later, Begun) for later in heard[i + 1 :]):
                        self._entries = _spelling(self._entries, text)
                    events += self._go_on(_Message, text)
                case Begun(_, name):
                    self._entries.clear()  # those of a call are told nowhere
                    events += self.close("completed")
                    events += self._begin(_Call(name, self._new_call_id()))
                case Argued(_, text):
                    events += self._more(text)
                case _ as never:
                    assert_never(never)
        return events

    def close(self, status: Status) -> list[Event]:
        """Events of the end of the item that grows, if one does."""
        if self._open is None:
            return []
        events = self._placed(self._open.closing(self._taken()))
        item = self._open.item(status)
        events += [{"type": "response.output_item.done", "output_index": self._index, "item": item}]
        self._closed.append(item)
        self._open = None
        return events

    def say_nothing(self) -> list[Event]:
        """An empty message, where all has ended and none came, nor a call."""
        if any(item["type"] != "reasoning" for item in self._closed):
            return []
        return self._begin(_Message()) + self.close("completed")

    def items(self, status: Status) -> list[Item]:
        """status: of the item that grows."""
        return self._closed if self._open is None else [*self._closed, self._open.item(status)]

    @property
    def _index(self) -> int:
        return len(self._closed)

    def _go_on(self, kind: type[_Reasoning] | type[_Message], text: str) -> list[Event]:
        if isinstance(self._open, kind):
            return self._more(text)
        entries = self._taken()
        if self._open is not None:
            entries = _spelling(entries, text)
        events = self.close("completed")
        events += self._begin(kind())
        self._entries = entries
        return events + self._more(text)

    def _begin(self, opened: _Open) -> list[Event]:
        self._open = opened
        item = opened.item("in_progress")
        if "content" in item:
            item["content"] = []
        added = {"type": "response.output_item.added", "output_index": self._index, "item": item}
        return [added, *self._placed(opened.opening())]

    def _more(self, text: str) -> list[Event]:
        assert self._open is not None
        return self._placed(self._open.more(text, self._taken()))

    def _placed(self, events: list[Event]) -> list[Event]:
        assert self._open is not None
        place = {"item_id": self._open.id, "output_index": self._index}
        return [event | place for event in events]

    def _taken(self) -> list[Entry]:
        taken, self._entries = self._entries, []
        return taken


def _spelling(entries: list[Entry], text: str) -> list[Entry]:
    """Those of `entries` that spell `text`: the others belong to the items before and behind it.
    All, where it is not found."""
    at = "".join(entry["token"] for entry in entries).find(text)
    if at < 0:
        return entries
    found, end = [], 0
    for entry in entries:
        begin, end = end, end + len(entry["token"])
        is_part = begin >= at and entry.get("bytes")  # of a character, which the last token spells
        if begin < at + len(text) and (end > at or is_part):
            found.append(entry)
    return found


class _Message:
    def __init__(self) -> None:
        self.id = new_id("msg")
        self._text = ""
        self._entries: list[Entry] = []

    def item(self, status: Status) -> Item:
        message = {"id": self.id, "type": "message", "role": "assistant", "status": status}
        return message | {"content": [self._part()]}

    def opening(self) -> list[Event]:
        return [{"type": "response.content_part.added", "content_index": 0, "part": self._part()}]

    def more(self, text: str, entries: list[Entry]) -> list[Event]:
        self._text += text
        self._entries += entries
        kind = "response.output_text.delta"
        return [{"type": kind, "content_index": 0, "delta": text, "logprobs": entries}]

    def closing(self, entries: list[Entry]) -> list[Event]:
        self._entries += entries
        told = {"text": self._text, "logprobs": list(self._entries)}
        return [
            {"type": "response.output_text.done", "content_index": 0, **told},
            {"type": "response.content_part.done", "content_index": 0, "part": self._part()},
        ]

    def _part(self) -> Item:
        part = {"type": "output_text", "text": self._text, "annotations": []}
        return part | {"logprobs": list(self._entries)}


class _Reasoning:
    """Its log-probabilities are told nowhere."""

    def __init__(self) -> None:
        self.id = new_id("rs")
        self._text = ""

    def item(self, status: Status) -> Item:
        item = {"id": self.id, "type": "reasoning", "summary": [], "content": [self._part()]}
        return item | {"status": status}

    def opening(self) -> list[Event]:
        return [{"type": "response.content_part.added", "content_index": 0, "part": self._part()}]

    def more(self, text: str, entries: list[Entry]) -> list[Event]:
        del entries
        self._text += text
        return [{"type": "response.reasoning_text.delta", "content_index": 0, "delta": text}]

    def closing(self, entries: list[Entry]) -> list[Event]:
        del entries
        return [
            {"type": "response.reasoning_text.done", "content_index": 0, "text": self._text},
            {"type": "response.content_part.done", "content_index": 0, "part": self._part()},
        ]

    def _part(self) -> Item:
        return {"type": "reasoning_text", "text": self._text}


class _Call:
    def __init__(self, name: str, call_id: str) -> None:
        self.id = new_id("fc")
        self._name = name
        self._call_id = call_id
        self._arguments = ""

    def item(self, status: Status) -> Item:
        return {
            "id": self.id,
            "type": "function_call",
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self._arguments,
            "status": status,
        }

    def opening(self) -> list[Event]:
        return []

    def more(self, text: str, entries: list[Entry]) -> list[Event]:
        del entries
        self._arguments += text
        return [{"type": "response.function_call_arguments.delta", "delta": text}]

    def closing(self, entries: list[Entry]) -> list[Event]:
        del entries
        told = {"name": self._name, "arguments": self._arguments}
        return [{"type": "response.function_call_arguments.done", **told}]
