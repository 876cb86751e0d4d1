"""Text on its way to tool calls, whatever the syntax.

Owns: the events that come of it, the text that waits for more, which blanks are nobody's words.
Must not know: any syntax, requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Said:
    """Text that is no part of a call."""

    text: str


@dataclass(frozen=True, slots=True)
class Begun:
    """Call `index`, from 0 on, of function `name`."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Argued:
    """More of the JSON text of call `index`'s arguments."""

    index: int
    text: str


Event = Said | Begun | Argued


class Source:
    """The text that no event tells yet, and the events so far.

    text: from the first character that is not taken. ended: no more will come. names: of the
    functions that may be called. Blanks beside a call are dropped where nothing else stands there.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.text = ""
        self.ended = False
        self.names = names
        self._events: list[Event] = []
        self._count = 0
        self._blanks = ""
        self._is_blank = True  # nothing but blanks since the beginning or the last call

    def take(self, length: int) -> str:
        taken, self.text = self.text[:length], self.text[length:]
        return taken

    def say(self, text: str) -> None:
        if self._is_blank:
            self._blanks += text
            if not self._blanks.strip():
                return
            text, self._blanks, self._is_blank = self._blanks, "", False
        if text:
            self._events.append(Said(text))

    def call(self, name: str, arguments: str = "") -> None:
        """Begin the next call."""
        self._blanks, self._is_blank = "", True
        self._events.append(Begun(self._count, name))
        self._count += 1
        self.argue(arguments)

    def argue(self, text: str) -> None:
        """More arguments of the call that began last."""
        if text:
            self._events.append(Argued(self._count - 1, text))

    def close(self) -> None:
        """What is left is text."""
        self.say(self.take(len(self.text)))
        if self._blanks and not self._count:
            self._events.append(Said(self._blanks))
            self._blanks = ""

    def told(self) -> list[Event]:
        """The events since it was last asked."""
        events, self._events = self._events, []
        return events


# Yields where it needs more text; a source that has ended is not waited for.
Steps = Generator[None, None, None]
Reader = Callable[[Source], Steps]


class ToolCallParser:
    """Turns the text of one output, piece by piece, into events. How the text is cut changes
    nothing but how the events are cut."""

    def __init__(self, reader: Reader, names: Collection[str]) -> None:
        """names: of the functions that may be called; what calls another is text."""
        self._source = Source(names)
        self._steps = reader(self._source)

    def feed(self, text: str) -> list[Event]:
        self._source.text += text
        self._go_on()
        return self._source.told()

    def finish(self) -> list[Event]:
        """What was held back, once no more text comes."""
        self._source.ended = True
        self._go_on()
        self._source.close()
        return self._source.told()

    def _go_on(self) -> None:
        if next(self._steps, True):  # it has read all that it wants
            self._source.say(self._source.take(len(self._source.text)))


def more(source: Source, at: int) -> Generator[None, None, bool]:
    """Whether there is a character at `at`, waiting for it."""
    while at >= len(source.text):
        if source.ended:
            return False
        yield
    return True


def said_until(source: Source, mark: str) -> Generator[None, None, bool]:
    """Say the text before the next `mark`, which then comes first; False where there is none."""
    while True:
        at = source.text.find(mark)
        if at >= 0:
            source.say(source.take(at))
            return True
        held = 0 if source.ended else _overlap(source.text, mark)
        source.say(source.take(len(source.text) - held))
        if source.ended:
            return False
        yield


def starts_with(source: Source, mark: str, at: int = 0) -> Generator[None, None, bool]:
    """Whether `mark` stands at `at`, waiting for as much text as it takes to tell."""
    while True:
        found = source.text[at : at + len(mark)]
        if len(found) == len(mark) or source.ended or not mark.startswith(found):
            return found == mark
        yield


def _overlap(text: str, mark: str) -> int:
    """The longest end of `text` with which `mark` may begin."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
