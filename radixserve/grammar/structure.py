"""Structural tags: free text in which certain texts must be followed by what was asked.

Owns: the formats there are, the one text of all that mean the same. Must not know: the JSON that
clients send, how a format becomes rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from radixserve.grammar import document
from radixserve.grammar.refusal import Unsupported
from radixserve.wire.params import ConstraintKind

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Const:
    """One text."""

    text: str
    pointer: str

    def json(self) -> Json:
        return {"type": "const_string", "value": self.text}


@dataclass(frozen=True, slots=True)
class Inner:
    """What another kind of constraint allows. value: a schema, or the text of the rest. style: how
    a schema is written; "python" is the arguments of a call, by name."""

    kind: ConstraintKind
    value: Any
    pointer: str
    style: Literal["json", "python"] = "json"

    def json(self) -> Json:
        match self.kind:
            case "json_schema":
                schema = document.Document(self.value).whole()
                style = {} if self.style == "json" else {"style": self.style}
                return {"type": "json_schema", "json_schema": schema, **style}
            case "regex":
                return {"type": "regex", "pattern": self.value}
            case _:
                return {"type": "grammar", "grammar": self.value}


@dataclass(frozen=True, slots=True)
class AnyText:
    """Any text without those of `excludes`."""

    excludes: tuple[str, ...]
    pointer: str

    def json(self) -> Json:
        return {"type": "any_text", "excludes": list(self.excludes)}


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Format, ...]
    pointer: str

    def json(self) -> Json:
        return {"type": "sequence", "elements": [part.json() for part in self.parts]}


@dataclass(frozen=True, slots=True)
class Or:
    options: tuple[Format, ...]
    pointer: str

    def json(self) -> Json:
        return {"type": "or", "elements": [option.json() for option in self.options]}


@dataclass(frozen=True, slots=True)
class Tag:
    """`begin`, the content, one of `ends`."""

    begin: str
    content: Format
    ends: tuple[str, ...]
    pointer: str

    def json(self) -> Json:
        told: Json = {"type": "tag", "begin": self.begin, "content": self.content.json()}
        return told | {"end": list(self.ends)}


@dataclass(frozen=True, slots=True)
class Triggered:
    """Any text; a trigger in it is the beginning of a tag. at_least_one: a tag comes first, with no
    text before it, as in xgrammar."""

    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool
    stop_after_first: bool
    excludes: tuple[str, ...]
    pointer: str

    def json(self) -> Json:
        told: Json = {"type": "triggered_tags", "triggers": list(self.triggers)}
        told |= {"tags": [tag.json() for tag in self.tags], "excludes": list(self.excludes)}
        return told | {
            "at_least_one": self.at_least_one,
            "stop_after_first": self.stop_after_first,
        }


@dataclass(frozen=True, slots=True)
class Separated:
    """Tags and nothing else, the separator between them."""

    tags: tuple[Tag, ...]
    separator: str
    at_least_one: bool
    stop_after_first: bool
    pointer: str

    def json(self) -> Json:
        told: Json = {"type": "tags_with_separator", "tags": [tag.json() for tag in self.tags]}
        return told | {
            "separator": self.separator,
            "at_least_one": self.at_least_one,
            "stop_after_first": self.stop_after_first,
        }


@dataclass(frozen=True, slots=True)
class Repeated:
    """`high` None is without end."""

    part: Format
    low: int
    high: int | None
    pointer: str

    def json(self) -> Json:
        high = -1 if self.high is None else self.high
        return {"type": "repeat", "content": self.part.json(), "min": self.low, "max": high}


Format = Const | Inner | AnyText | Sequence | Or | Tag | Triggered | Separated | Repeated


def wrong(pointer: str, keyword: str, why: str) -> Unsupported:
    """The error for a field of a structural tag; keyword "" where a format itself is at fault."""
    return Unsupported(pointer, keyword, why, what="structural_tag")


def canonical(found: Format) -> Json:
    """The JSON of the one structural tag of all that mean the same; it reads as itself."""
    return {"format": found.json()}


def schemas(found: Format) -> Iterator[tuple[str, Any]]:
    """Every JSON Schema in a format, with its pointer."""
    match found:
        case Inner("json_schema", value, pointer):
            yield pointer, value
        case Tag(content=part) | Repeated(part=part):
            yield from schemas(part)
        case Sequence(parts) | Or(parts) | Triggered(tags=parts) | Separated(tags=parts):
            for part in parts:
                yield from schemas(part)
        case _:
            return
