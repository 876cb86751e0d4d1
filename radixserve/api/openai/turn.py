"""What the assistant says in one choice: reasoning, text, and calls of tools.

Owns: message and deltas in OpenAI's shapes, ids of calls. Must not know: finish reasons,
log-probabilities, how a call is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radixserve.native.hearing import Heard, Hearing, Spoken
from radixserve.text.reasoning import Thought
from radixserve.text.tool_calls_stream import Argued, Begun, Said

Event = dict[str, Any]


class Turn:
    """content is null where nothing but calls was said.

    The first delta of a call has its id and name, those after it have arguments alone. Reasoning
    goes by two names, since each is the only one that some clients read.
    """

    def __init__(self, hearing: Hearing, new_id: Callable[[], str]) -> None:
        self._spoken = Spoken(hearing, new_id)

    @property
    def has_calls(self) -> bool:
        """A call has begun."""
        return bool(self._spoken.calls)

    def opening(self) -> Event:
        """The first delta of a stream."""
        return {"role": "assistant", "content": None if self._spoken.has_tools else ""}

    def add(self, text: str, is_last: bool) -> list[Event]:
        """Deltas of what `text` adds."""
        spoken = self._spoken
        deltas = [self._delta(event) for event in spoken.add(text, is_last)]
        if is_last and spoken.has_tools and not spoken.text and not spoken.calls:
            deltas.append({"content": ""})
        return deltas

    def message(self) -> Event:
        """The whole message, once all text was added."""
        spoken = self._spoken
        content = spoken.text if spoken.text or not spoken.calls else None
        message: Event = {"role": "assistant", "content": content, "refusal": None}
        if spoken.has_thoughts:
            message |= _thought(spoken.thoughts or None)
        return message | {"tool_calls": spoken.calls} if spoken.calls else message

    def _delta(self, event: Heard) -> Event:
        match event:
            case Thought(text):
                return _thought(text)
            case Said(text):
                return {"content": text}
            case Begun(index, name):
                call = {**self._spoken.calls[index], "function": {"name": name, "arguments": ""}}
                return {"tool_calls": [{"index": index, **call}]}
            case Argued(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _thought(text: str | None) -> Event:
    return {"reasoning_content": text, "reasoning": text}
