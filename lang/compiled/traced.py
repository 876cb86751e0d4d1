"""What stands for a value while a program is traced, and the record of what the program does.

Owns: traced values, which refuse whatever would need the value itself, the marks that stand for
them inside plain texts, the list of steps. Must not know: states.

A mark is found again in the text that an f-string made of it. Every mark must turn up whole in a
step, or something else was done with that text. Marks have two shapes, a short and a long one; a
program that does not do the same under both looks at texts that it should not.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from radixserve.lang.compiled.graph import Doing, Step
from radixserve.lang.compiled.handlers import is_caught, module_of
from radixserve.lang.compiled.values import PARTS, Piece, Template, Use, Value, template
from radixserve.lang.errors import DynamicProgram
from radixserve.lang.ir import Chain, Standin, is_text, items

LANG = "radixserve.lang"
_LIBRARY = str(Path(os.__file__).parent)
_ENTRY = "radixserve.lang.compiled.tracing"
_BASE = 0xF3A40  # a private plane: no text has these characters by chance
_OPEN, _CLOSE, *_DIGITS = (chr(_BASE + i) for i in range(12))
_ANY = re.compile(f"[{chr(_BASE)}-{chr(_BASE + 11)}]")
_NUMBER = f"([{_DIGITS[0]}-{_DIGITS[-1]}]+)"
SHORT, LONG = ("", "", ""), (" \n", "aZ9 é", "\t ")


class TracedValue(Standin):
    """A value, or a text with values in it, that a run will make. It can be put into a text."""

    __slots__ = ("_traced_label", "_traced_pieces", "_traced_recorder")

    def __init__(self, recorder: Recorder, pieces: tuple[Piece, ...], label: str) -> None:
        self._traced_recorder = recorder
        self._traced_pieces = pieces
        self._traced_label = label

    def __add__(self, other: Any) -> Any:
        return self._traced_joined(self._traced_pieces, other, in_front=True)

    def __radd__(self, other: Any) -> Any:
        return self._traced_joined(self._traced_pieces, other, in_front=False)

    def __format__(self, spec: str) -> str:
        self._traced_recorder.refuse(
            f"{self._traced_label} is formatted by {spec!r}"
            if spec
            else f"{self._traced_label} is made a text by code that cannot be seen through"
        )

    def __str__(self) -> str:
        return self.__format__("")

    def _traced_joined(self, own: tuple[Piece, ...], other: Any, in_front: bool) -> Any:
        if is_text(other):
            them = pieces_of(self._traced_recorder, other)
            return TracedValue(
                self._traced_recorder, own + them if in_front else them + own, self._traced_label
            )
        return Chain((*items(self), *items(other)) if in_front else (*items(other), *items(self)))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        self._traced_recorder.refuse(f"the type of {self._traced_label} is asked for")


class Slot:
    """Stands for a traced value in a text that format() or % makes; a mark comes there."""

    __slots__ = ("_traced",)

    def __init__(self, traced: TracedValue) -> None:
        self._traced = traced

    def __format__(self, spec: str) -> str:
        return format(self._traced, spec) if spec else str(self)

    def __str__(self) -> str:
        return self._traced._traced_recorder.mark(self._traced)

    def __repr__(self) -> str:
        return repr(self._traced)


def _refusing(verb: str) -> Callable[..., NoReturn]:
    def refuse(self: TracedValue, *_: object) -> NoReturn:
        self._traced_recorder.refuse(f"{self._traced_label} is {verb}")

    return refuse


_REFUSED = {
    "tested": ("bool", "eq", "ne", "lt", "le", "gt", "ge", "contains", "hash", "len"),
    "read piece by piece": ("iter", "getitem", "reversed"),
    "made a number": ("int", "float", "index", "complex", "round"),
    "computed with": ("mul", "rmul", "mod", "rmod", "sub", "rsub", "truediv", "rtruediv", "neg",
                      "floordiv", "rfloordiv", "pow", "rpow", "abs", "and", "or", "invert"),
    "shown": ("repr",),
    "called": ("call",),
}  # fmt: skip
for _verb, _names in _REFUSED.items():
    for _name in _names:
        setattr(TracedValue, f"__{_name}__", _refusing(_verb))


def _attribute(self: TracedValue, name: str) -> TracedValue:
    if name.startswith("__"):  # what Python looks for in any object
        raise AttributeError(name)
    part = self._traced_recorder.part(self, name) if name in PARTS else None
    if part is None:
        self._traced_recorder.refuse(f".{name} of {self._traced_label} is used")
    return part


setattr(TracedValue, "__getattr__", _attribute)  # noqa: B010 - mypy would allow any name


def pieces_of(recorder: Recorder, value: Any) -> tuple[Piece, ...]:
    """The pieces of a text or a traced value."""
    return value._traced_pieces if type(value) is TracedValue else recorder.split(value)


class Recorder:
    """The steps of one trace. shape: of its marks."""

    def __init__(self, shape: tuple[str, str, str]) -> None:
        self.steps: list[Step] = []
        self.branches = 1
        self.fault: DynamicProgram | None = None
        self._shape = shape
        before, amid, after = map(re.escape, shape)
        self._mark = re.compile(f"{before}{_OPEN}{_NUMBER}{amid}{_CLOSE}{after}")
        self._marks: list[tuple[TracedValue, str, int]] = []
        self._found: set[int] = set()
        self._kept: list[tuple[Any, str, Value]] = []

    def take(self, on: int, do: Doing) -> int:
        """Note a step; its number."""
        self.steps.append(Step(on, do))
        return len(self.steps) - 1

    def refuse(self, reason: str, at: tuple[str, int] | None = None) -> NoReturn:
        """The program is dynamic. Its first such place counts, also where it goes on."""
        filename, line = at or _place()
        error = DynamicProgram(reason, filename, line)
        self.fault = self.fault or error
        raise error

    def value(self, source: str | int, label: str, item: int | None = None) -> TracedValue:
        return TracedValue(self, (Use(source, item),), label)

    def read(self, label: str) -> None:
        """A value of the model is read: an error of its call would be raised here."""
        if is_caught(_user_frame(), LANG, _ENTRY):
            self.refuse(f"{label} is read where errors are caught, which a graph cannot do")

    def read_as_stream(self, name: str | None) -> None:
        self.refuse(f"the text of {name or 'a state'} is read while it grows")

    def mark(self, value: TracedValue) -> str:
        """A text that stands for the value as it is formatted."""
        number = len(self._marks)
        self._marks.append((value, *_place()))
        before, amid, after = self._shape
        digits = "".join(_DIGITS[int(digit)] for digit in str(number))
        return f"{before}{_OPEN}{digits}{amid}{_CLOSE}{after}"

    def split(self, text: str) -> tuple[Piece, ...]:
        """The text's pieces, its marks being uses again."""
        if not _ANY.search(text):
            return (text,)
        parts = self._mark.split(text)
        pieces: list[Piece] = []
        for i, part in enumerate(parts):
            if i % 2 == 0:
                if _ANY.search(part):
                    self.refuse("a text that values stand in was changed after that")
                pieces.append(part)
                continue
            number = int("".join(str(_DIGITS.index(digit)) for digit in part))
            self._found.add(number)
            pieces += [formatted(each) for each in self._marks[number][0]._traced_pieces]
        return template(pieces).pieces

    def refuse_marks(self, value: Any, what: str) -> None:
        """Raise where a text of `value` holds a mark."""
        match value:
            case str() if _ANY.search(value):
                self.refuse(f"{what} depends on a value that only a run has")
            case dict():
                for name, each in value.items():
                    self.refuse_marks(name, what)
                    self.refuse_marks(each, what)
            case list() | tuple():
                for each in value:
                    self.refuse_marks(each, what)
            case _:
                pass

    def quote(self, value: Any, what: str, at: tuple[str, int] | None = None) -> Value:
        """`value` as a graph holds it. at: where it comes from, if that is not the line at work."""
        if type(value) is TracedValue:
            match value._traced_pieces:
                case (Use() as use,) if not use.is_formatted:
                    return use
            return template(value._traced_pieces)
        match value:
            case str() if type(value) is str:
                made = template(self.split(value))
                return value if made.constant is not None else made
            case list() | tuple() if type(value) in (list, tuple):
                return type(value)(self.quote(each, what, at) for each in value)
            case dict() if all(type(name) is str for name in value):
                self.refuse_marks(list(value), what)
                return {name: self.quote(each, what, at) for name, each in value.items()}
            case None | bool() | int():
                if value is None or type(value) in (bool, int):
                    return value
            case float() if type(value) is float and math.isfinite(value):
                return value
        return self.refuse(f"{what} is {value!r}, which no graph can hold", at)

    def part(self, value: TracedValue, name: str) -> TracedValue | None:
        """The text or the calls of a turn; None where `value` is none."""
        match value._traced_pieces:
            case (Use(source=int() as number, is_formatted=False, part="") as use,) if (
                getattr(self.steps[number].do, "tools", None) is not None
            ):
                pieces = (dataclasses.replace(use, part=name),)
                return TracedValue(self, pieces, f"{value._traced_label}.{name}")
            case _:
                return None

    def is_text(self, value: TracedValue) -> bool:
        """Whether it will be a str, whatever comes."""
        match value._traced_pieces:
            case (Use(part="text"),):
                return True
            case (Use(source=int() as number, is_formatted=False, part=""),):
                do = self.steps[number].do
                return getattr(do, "read", None) is None and getattr(do, "tools", None) is None
            case (Use(is_formatted=False),):
                return False
            case _:
                return True

    def keep(self, value: Any, what: str) -> None:
        """A variable is `value`, and has to stay so."""
        if type(value) in (list, tuple, dict):
            self._kept.append((value, what, self.quote(value, what)))

    def check_kept(self) -> None:
        """Raise where an object that is a variable was changed after that."""
        for value, what, quoted in self._kept:
            if self.quote(value, what) != quoted:
                self.refuse(f"{what} is changed in place, which no step does")

    def check_marks(self) -> None:
        """Raise where a text was made of a value and did not come into any step."""
        for number, (value, filename, line) in enumerate(self._marks):
            if number not in self._found:
                reason = f"a text is made of {value._traced_label} that no step has"
                self.refuse(reason, (filename, line))


def formatted(piece: Piece) -> Piece:
    return piece if isinstance(piece, str) else dataclasses.replace(piece, is_formatted=True)


def _user_frame() -> Any:
    """The nearest frame outside of lang, or None."""
    frame: Any = sys._getframe(1)
    while frame is not None and module_of(frame).startswith(LANG):
        frame = frame.f_back
    return frame


def _place() -> tuple[str, int]:
    """The line at work, of the program rather than of a library that it uses."""
    nearest = frame = _user_frame()
    while frame is not None and (
        frame.f_code.co_filename.startswith(_LIBRARY) or module_of(frame).startswith(LANG)
    ):
        frame = frame.f_back
    at = frame or nearest
    return ("", 0) if at is None else (at.f_code.co_filename, at.f_lineno)


def joined(recorder: Recorder, texts: Iterable[Any]) -> Template:
    """One template of texts and traced values that were appended together."""
    return template(piece for each in texts for piece in pieces_of(recorder, each))
