"""Values that are there only when a compiled program runs, and what is made of them.

Owns: uses of arguments and of what steps make, texts with such uses in them. Must not know: steps,
JSON, how a program runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a value.

    source: a parameter's name, or the number of the step that makes the value. item: of a list.
    is_formatted: it stands in a text as an f-string writes it; otherwise it must be a str there.
    part: of a turn, its text or its calls; "" is the value itself.
    """

    source: str | int
    item: int | None = None
    is_formatted: bool = False
    part: str = ""


Piece = str | Use
PARTS = ("text", "calls")  # of a turn


@dataclass(frozen=True, slots=True)
class Template:
    """A text of constant pieces and uses; no two constants stand side by side, none is empty."""

    pieces: tuple[Piece, ...] = ()

    @property
    def constant(self) -> str | None:
        """The text, where nothing in it is used."""
        match self.pieces:
            case ():
                return ""
            case (str() as text,):
                return text
            case _:
                return None

    @property
    def head(self) -> str:
        """The constant beginning."""
        first = self.pieces[0] if self.pieces else ""
        return first if isinstance(first, str) else ""


# None, bool, int, float, str, Use, Template, and list, tuple and dict (with str keys) of them.
Value = Any


def template(pieces: Iterable[Piece]) -> Template:
    """The template of these pieces, constants joined."""
    made: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and made and isinstance(made[-1], str):
            made[-1] += piece
        elif piece != "":
            made.append(piece)
    return Template(tuple(made))


def uses(value: Value) -> Iterator[Use]:
    """Every use in it."""
    match value:
        case Use():
            yield value
        case Template(pieces=pieces):
            yield from (piece for piece in pieces if isinstance(piece, Use))
        case dict():
            for each in value.values():
                yield from uses(each)
        case list() | tuple():
            for each in value:
                yield from uses(each)
        case _:
            return
