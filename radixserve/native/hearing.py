"""What the assistant says in one output, piece by piece, as every dialect hears it.

Owns: which parser reads the text of an output, and what all pieces add up to. Must not know: any
dialect's shapes, how a call is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from radixserve.text.reasoning import (
    Event,
    HeardParser,
    ReasoningParser,
    Thought,
    WholeParser,
    parser_of,
)
from radixserve.text.tool_calls import Syntax
from radixserve.text.tool_calls_stream import Argued, Begun, Said
from radixserve.wire.reasoning import Reasoning

Heard = Event


class Hearing:
    """One output. has_tools: it may call some. has_thoughts: it may reason, before all else."""

    def __init__(self, parser: HeardParser, *, has_tools: bool, has_thoughts: bool) -> None:
        self._parser = parser
        self.has_tools = has_tools
        self.has_thoughts = has_thoughts

    def add(self, text: str, is_last: bool) -> list[Heard]:
        """What `text` adds. is_last: no more comes, so what was held back is told as well."""
        heard = self._parser.feed(text)
        return heard + self._parser.finish() if is_last else heard


def hearing_of(
    syntax: Syntax,
    names: Collection[str],
    reasoning: Reasoning | None,
    *,
    is_marked: bool,
    is_bound: bool,
    separates: bool,
) -> Hearing:
    """For one output. names: of the functions that it may call. is_marked: see Syntax.parser.
    is_bound: it has a constraint. separates: reasoning is told apart, else it is said."""
    calls = syntax.parser(names, is_marked=is_marked) if names else None
    thoughts: ReasoningParser | WholeParser | None = None
    if reasoning is not None and separates:
        thoughts = parser_of(reasoning, is_bound=is_bound)
    elif reasoning is not None:
        thoughts = WholeParser(reasoning)
    return Hearing(
        HeardParser(thoughts, calls),
        has_tools=bool(names),
        has_thoughts=isinstance(thoughts, ReasoningParser),
    )


class Spoken:
    """All that one output has said so far.

    calls: as OpenAI writes them, {"id", "type", "function": {"name", "arguments": JSON text}}.
    new_id: makes the id of a call.
    """

    def __init__(self, hearing: Hearing, new_id: Callable[[], str]) -> None:
        self.text = ""
        self.thoughts = ""
        self.calls: list[dict[str, Any]] = []
        self._hearing = hearing
        self._new_id = new_id

    @property
    def has_tools(self) -> bool:
        return self._hearing.has_tools

    @property
    def has_thoughts(self) -> bool:
        return self._hearing.has_thoughts

    def add(self, text: str, is_last: bool) -> list[Heard]:
        """What `text` adds, see Hearing.add."""
        heard = self._hearing.add(text, is_last)
        for event in heard:
            self._take(event)
        return heard

    def _take(self, event: Heard) -> None:
        match event:
            case Thought(text):
                self.thoughts += text
            case Said(text):
                self.text += text
            case Begun(_, name):
                function = {"name": name, "arguments": ""}
                call = {"id": self._new_id(), "type": "function", "function": function}
                self.calls.append(call)
            case Argued(index, text):
                self.calls[index]["function"]["arguments"] += text
