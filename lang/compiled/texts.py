"""Texts that a traced program makes of values by f-strings, join, format() and %.

Owns: keeping the values apart in them. Must not know: where a program does so, states.

A text with a value in it is a traced value again, so whatever it is asked is refused.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from radixserve.lang.compiled.traced import Recorder, Slot, TracedValue, formatted, pieces_of
from radixserve.lang.compiled.values import Piece, template

_CONVERSIONS: dict[int, Callable[[Any], str]] = {115: str, 114: repr, 97: ascii}
_WIDE = re.compile(r"%(\([^()]*\))?[#0\- +]*(?:[*\d]|\.)")


def text_of(*parts: Any) -> Any:
    """What an f-string of these parts comes to: constants, and (value, conversion, format)."""
    pieces: list[Any] = []
    traced: TracedValue | None = None
    for part in parts:
        if type(part) is str:
            pieces.append(part)
            continue
        value, conversion, spec = part
        if type(value) is TracedValue and conversion in (-1, 115) and not spec:
            traced = value
            pieces += [formatted(piece) for piece in value._traced_pieces]
            continue
        if conversion in _CONVERSIONS:
            value = _CONVERSIONS[conversion](value)
        pieces.append(format(value, spec))
    return _together(pieces, traced)


def join_of(owner: str, listed: Iterable[Any]) -> Any:
    """owner.join(listed)."""
    each = list(listed)
    traced = traced_in(each)
    if traced is None:
        return owner.join(each)
    recorder = traced._traced_recorder
    pieces: list[Any] = []
    for i, item in enumerate(each):
        pieces += (owner,) if i else ()
        pieces += pieces_of(recorder, item)
    return _together(pieces, traced)


def format_of(owner: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """owner.format(*args, **kwargs)."""
    traced = traced_in((*args, *kwargs.values()))
    if traced is None:
        return owner.format(*args, **kwargs)
    if any(spec and turned for _, _, spec, turned in string.Formatter().parse(owner)):
        traced._traced_recorder.refuse(f"{traced._traced_label} is formatted by {owner!r}")
    filled = owner.format(*map(_slot, args), **{name: _slot(each) for name, each in kwargs.items()})
    return _together([filled], traced)


def percent_of(left: Any, right: Any) -> Any:
    """left % right."""
    values = right if type(right) is tuple else (right,)
    values = tuple(right.values()) if type(right) is dict else values
    traced = traced_in(values) if type(left) is str else None
    if traced is None:
        return left % right
    if _WIDE.search(left):
        traced._traced_recorder.refuse(f"{traced._traced_label} is formatted by {left!r}")
    if type(right) is dict:
        return _together([left % {name: _slot(each) for name, each in right.items()}], traced)
    return _together([left % tuple(map(_slot, values))], traced)


def traced_in(values: Iterable[Any]) -> TracedValue | None:
    """The first of them that is traced."""
    return next((each for each in values if type(each) is TracedValue), None)


def _slot(value: Any) -> Any:
    return Slot(value) if type(value) is TracedValue else value


def _together(pieces: list[Any], traced: TracedValue | None) -> Any:
    if traced is None:
        return "".join(pieces)
    recorder: Recorder = traced._traced_recorder
    split: list[Piece] = []
    for piece in pieces:
        split += recorder.split(piece) if isinstance(piece, str) else [piece]
    return TracedValue(recorder, template(split).pieces, traced._traced_label)
