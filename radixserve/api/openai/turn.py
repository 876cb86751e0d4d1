"""What the assistant says in one choice: text, and calls of tools.

Owns: message and deltas in OpenAI's shapes, ids of calls. Must not know: finish reasons,
log-probabilities, how a call is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from radixserve.text.tool_calls_stream import Argued, Begun, Said, ToolCallParser
from radixserve.text.tool_calls_stream import Event as Heard

Event = dict[str, Any]


class Turn(Protocol):
    """has_calls: a call has begun."""

    @property
    def has_calls(self) -> bool: ...
    def opening(self) -> Event:
        """The first delta of a stream."""

    def add(self, text: str, is_last: bool) -> list[Event]:
        """Deltas of what `text` adds."""

    def message(self) -> Event:
        """The whole message, once all text was added."""


class TextTurn:
    """Where there are no tools, all is text."""

    has_calls = False

    def __init__(self) -> None:
        self._text = ""

    def opening(self) -> Event:
        return {"role": "assistant", "content": ""}

    def add(self, text: str, is_last: bool) -> list[Event]:
        del is_last  # nothing is held back
        self._text += text
        return [{"content": text}] if text else []

    def message(self) -> Event:
        return {"role": "assistant", "content": self._text, "refusal": None}


class ToolTurn:
    """Where there are tools. content is null where nothing but calls was said.

    The first delta of a call has its id and name, those after it have arguments alone.
    """

    def __init__(self, parser: ToolCallParser, new_id: Callable[[], str]) -> None:
        self._parser = parser
        self._new_id = new_id
        self._text = ""
        self._calls: list[Event] = []

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    def opening(self) -> Event:
        return {"role": "assistant", "content": None}

    def add(self, text: str, is_last: bool) -> list[Event]:
        heard = self._parser.feed(text)
        if is_last:
            heard += self._parser.finish()
        deltas = [self._delta(event) for event in heard]
        if is_last and not self._text and not self._calls:
            deltas.append({"content": ""})
        return deltas

    def message(self) -> Event:
        content = self._text if self._text or not self._calls else None
        message: Event = {"role": "assistant", "content": content, "refusal": None}
        return message | {"tool_calls": self._calls} if self._calls else message

    def _delta(self, event: Heard) -> Event:
        match event:
            case Said(text):
                self._text += text
                return {"content": text}
            case Begun(index, name):
                function = {"name": name, "arguments": ""}
                call = {"id": self._new_id(), "type": "function", "function": function}
                self._calls.append(call)
                return {"tool_calls": [{"index": index, **call, "function": dict(function)}]}
            case Argued(index, text):
                self._calls[index]["function"]["arguments"] += text
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
