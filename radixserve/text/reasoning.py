"""Reasoning and answer, told apart while the text arrives.

Owns: the tags in which models reason, which of them a model writes, where a prompt leaves them,
the pieces that come of a text. Must not know: requests, any dialect, how an end is enforced.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from radixserve.errors import ConfigError
from radixserve.text.tool_calls_stream import Argued, Begun, Said, ToolCallParser
from radixserve.wire.reasoning import BLANKS, Follower, Reasoning, Start, overlap

Place = Literal["open", "closed", "either"]


@dataclass(frozen=True, slots=True)
class Tags:
    """gap: what models write between the end tag and their answer."""

    begin: str
    end: str
    gap: str = "\n\n"


@dataclass(frozen=True, slots=True)
class Thinking:
    """How the served model reasons.

    is_open: its outputs begin inside of reasoning also where the prompt does not show it.
    is_described: it is told so by a system block of ours, and the prompt ends with the begin tag.
    """

    tags: Tags
    is_open: bool = False
    is_described: bool = False


@dataclass(frozen=True, slots=True)
class Thought:
    """Text of the reasoning."""

    text: str


Event = Thought | Said | Begun | Argued

THINK = Tags("<think>", "</think>")
MISTRAL = Tags("[THINK]", "[/THINK]", "")
DESCRIPTION = (
    f"Before you answer, think step by step between {THINK.begin} and {THINK.end}. "
    f"Behind {THINK.end} write the answer alone."
)
PARSERS: dict[str, Thinking] = {
    "think": Thinking(THINK),
    "qwen3": Thinking(THINK),
    "deepseek_r1": Thinking(THINK, is_open=True),
    "mistral": Thinking(MISTRAL),
    "described": Thinking(THINK, is_described=True),
}
_FAMILIES = (THINK, MISTRAL)
TAG_TEXTS = tuple(text for tags in _FAMILIES for text in (tags.begin, tags.end))


def thinking_of(template: str, added: Collection[str], parser: str = "template") -> Thinking | None:
    """How a model with this chat template and these added tokens reasons; None: it does not.

    parser: "template" for what the template shows, or else the added tokens; "none"; one of
    PARSERS; or the tags themselves with ".." between them, like "<reason>..</reason>". Raises
    ConfigError for any other.
    """
    if parser == "none":
        return None
    if parser in PARSERS:
        return PARSERS[parser]
    if parser != "template":
        return Thinking(_own_tags(parser))
    shown = (tags for tags in _FAMILIES if tags.end in template)
    known = (tags for tags in _FAMILIES if tags.begin in template and tags.end in added)
    tags = next(shown, None) or next(known, None)
    return None if tags is None else Thinking(tags)


def _own_tags(text: str) -> Tags:
    begin, dots, end = text.partition("..")
    if not (begin.strip() and dots and end.strip()) or begin.strip() == end.strip():
        raise ConfigError(
            f"reasoning_parser is template, none, {', '.join(PARSERS)} or two tags like "
            f"<reason>..</reason>, not {text!a:.80}"
        )
    return Tags(begin.strip(), end.strip())


def place_of(prompt: str, tags: Tags) -> Place:
    """Where a prompt that ends so leaves an output: inside of reasoning, behind it, or either."""
    rest = prompt.rstrip(BLANKS)
    if rest.endswith(tags.begin):
        return "open"
    return "closed" if rest.endswith(tags.end) else "either"


def continued(text: str, tags: Tags) -> Place:
    """The same for an answer that goes on behind `text`, all that it has so far."""
    inside = text.lstrip(BLANKS)
    if inside.startswith(tags.begin) and tags.end not in inside:
        return "open"
    return "closed" if text else "either"


class ReasoningParser:
    """The text of one output, piece by piece, as thoughts and what is said behind them. How the
    text is cut changes nothing but how the pieces are cut.

    Reasoning loses the blanks around it. The answer loses the blanks before it, or with `gap` that
    text alone: an answer that is bound may begin with blanks of its own. Where the output does not
    reason, all is said, as it is. Reasoning that never ends has no answer behind it; tags behind
    the first end tag are text.
    """

    def __init__(self, tags: Tags, start: Start, *, gap: str | None = None) -> None:
        self._tags = tags
        self._gap = gap
        self._held = ""
        self._read = self._opening if start == "open" else self._before
        self._ended = False
        self._found: list[Thought | Said] = []

    def feed(self, text: str) -> list[Thought | Said]:
        self._held += text
        return self._told()

    def finish(self) -> list[Thought | Said]:
        """What was held back, once no more text comes."""
        self._ended = True
        return self._told()

    def _told(self) -> list[Thought | Said]:
        reading = None
        while reading != self._read:
            reading = self._read
            reading()
        found, self._found = self._found, []
        return found

    # Where the text stands; each reads what it can of what is held.

    def _before(self) -> None:
        text = self._held.lstrip(BLANKS)
        if text.startswith(self._tags.begin):
            self._read = self._opening
        elif self._ended or not self._tags.begin.startswith(text):
            self._read = self._behind

    def _opening(self) -> None:
        """Past a begin tag, which some models write although the prompt has one."""
        self._held = self._held.lstrip(BLANKS)
        begin = self._tags.begin
        if self._held.startswith(begin):
            self._held = self._held[len(begin) :]
        elif begin.startswith(self._held) and not self._ended:
            return
        self._read = self._leading

    def _leading(self) -> None:
        self._held = self._held.lstrip(BLANKS)
        if self._held:
            self._read = self._inside

    def _inside(self) -> None:
        at = self._held.find(self._tags.end)
        if at >= 0:
            rest = self._held[at + len(self._tags.end) :]
            self._think(at)
            self._held = rest
            self._read = self._between
        else:
            held = 0 if self._ended else overlap(self._held, self._tags.end)
            self._think(len(self._held) - held)

    def _think(self, size: int) -> None:
        """Tell the first `size` characters of what is held, but not the blanks at their end."""
        thought = self._held[:size].rstrip(BLANKS)
        if thought:
            self._found.append(Thought(thought))
        self._held = self._held[len(thought) :]

    def _between(self) -> None:
        if self._gap is None:
            self._held = self._held.lstrip(BLANKS)
            if self._held:
                self._read = self._behind
        elif self._held.startswith(self._gap):
            self._held = self._held[len(self._gap) :]
            self._read = self._behind
        elif self._ended or not self._gap.startswith(self._held):
            self._read = self._behind

    def _behind(self) -> None:
        if self._held:
            self._found.append(Said(self._held))
            self._held = ""


class WholeParser:
    """The same text with nothing left out: reasoning and its tags are thoughts."""

    def __init__(self, reasoning: Reasoning) -> None:
        self._follower = Follower(reasoning.begin, reasoning.end, reasoning.start)
        self._held = ""

    def feed(self, text: str) -> list[Thought | Said]:
        follower = self._follower
        self._held += text
        follower.feed(text.encode())
        match follower.phase:
            case "before":
                return []
            case "inside":
                return self._told(0)
        assert follower.answer_at is not None
        return self._told(follower.size - follower.answer_at)

    def finish(self) -> list[Thought | Said]:
        """What was held back, once no more text comes."""
        return self._told(len(self._held.encode()))

    def _told(self, said: int) -> list[Thought | Said]:
        """What is held, of which the last `said` bytes are no thoughts."""
        held, self._held = self._held.encode(), ""
        border = max(0, len(held) - said)
        thought, rest = held[:border].decode(), held[border:].decode()
        found: list[Thought | Said] = [Thought(thought)] if thought else []
        return [*found, Said(rest)] if rest else found


def parser_of(reasoning: Reasoning, *, is_bound: bool) -> ReasoningParser:
    """For one output. is_bound: the answer has a constraint, so just the gap stands before it."""
    tags = Tags(reasoning.begin.decode(), reasoning.end.decode(), reasoning.gap.decode())
    return ReasoningParser(tags, reasoning.start, gap=tags.gap if is_bound else None)


class HeardParser:
    """Reasoning, then calls: what is said behind the reasoning goes through `calls`, and a call
    in the reasoning is none. Either may be None, which leaves its events out. Of a WholeParser
    the thoughts are said."""

    def __init__(
        self, reasoning: ReasoningParser | WholeParser | None, calls: ToolCallParser | None
    ) -> None:
        self._reasoning = reasoning
        self._calls = calls
        self._says_all = isinstance(reasoning, WholeParser)

    def feed(self, text: str) -> list[Event]:
        if self._reasoning is None:
            return self._heard([Said(text)] if text else [])
        return self._heard(self._reasoning.feed(text))

    def finish(self) -> list[Event]:
        """What was held back, once no more text comes."""
        found = self._heard([] if self._reasoning is None else self._reasoning.finish())
        return found if self._calls is None else [*found, *self._calls.finish()]

    def _heard(self, pieces: list[Thought | Said]) -> list[Event]:
        found: list[Event] = []
        for piece in pieces:
            if isinstance(piece, Said) and self._calls is not None:
                found += self._calls.feed(piece.text)
            else:
                found.append(Said(piece.text) if self._says_all else piece)
        return found
