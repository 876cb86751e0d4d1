"""What the assistant says in one choice: reasoning, text, and calls of tools.

Owns: message and deltas in OpenAI's shapes, ids of calls. Must not know: finish reasons,
log-probabilities, how a call is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radixserve.api.turns.hearing import Heard, Hearing
from radixserve.text.reasoning import Thought
from radixserve.text.tool_calls_stream import Argued, Begun, Said

Event = dict[str, Any]


class Turn:
    """content is null where nothing but calls was said.

    The first delta of a call has its id and name, those after it have arguments alone. Reasoning
    goes by two names, since each is the only one that some clients read.
    """

    def __init__(self, hearing: Hearing, new_id: Callable[[], str]) -> None:
        self._hearing = hearing
        self._new_id = new_id
        self._text = ""
        self._thoughts = ""
        self._calls: list[Event] = []

    @property
    def has_calls(self) -> bool:
        """A call has begun."""
        return bool(self._calls)

    def opening(self) -> Event:
        """The first delta of a stream."""
        return {"role": "assistant", "content": None if self._hearing.has_tools else ""}

    def add(self, text: str, is_last: bool) -> list[Event]:
        """Deltas of what `text` adds."""
        deltas = [self._delta(event) for event in self._hearing.add(text, is_last)]
        if is_last and self._hearing.has_tools and not self._text and not self._calls:
            deltas.append({"content": ""})
        return deltas

    def message(self) -> Event:
        """The whole message, once all text was added."""
        content = self._text if self._text or not self._calls else None
        message: Event = {"role": "assistant", "content": content, "refusal": None}
        if self._hearing.has_thoughts:
            message |= _thought(self._thoughts or None)
        return message | {"tool_calls": self._calls} if self._calls else message

    def _delta(self, event: Heard) -> Event:
        match event:
            case Thought(text):
                self._thoughts += text
                return _thought(text)
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


def _thought(text: str | None) -> Event:
    return {"reasoning_content": text, "reasoning": text}
