"""Reads the JSON of structural tags.

Owns: both spellings, the fields of each format, what of them has no effect here and is refused.
Must not know: how a format becomes rules.

{"format": {..}} is the newer spelling; {"structures": [{"begin", "schema", "end"}], "triggers":
[..]} is an older one of triggered tags around JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radixserve.grammar.structure import (
    AnyText,
    Const,
    Format,
    Inner,
    Json,
    Or,
    Repeated,
    Separated,
    Sequence,
    Tag,
    Triggered,
    wrong,
)

MAX_DEPTH = 32
MAX_FORMATS = 2000
MAX_TEXT = 4096  # characters of a begin, an end, a trigger ..
MAX_TEXTS = 256  # triggers, or other texts in one list
MAX_REPEAT = 5000


def read(raw: object) -> Format:
    """The format of a structural tag. Raises InvalidRequest with pointer and keyword."""
    given = _object(raw, "")
    if given.get("type", "structural_tag") != "structural_tag":
        raise wrong("", "type", 'is "structural_tag"')
    if "format" in given:
        fields = _fields(given, "", ("format",), ("type",))
        return _Reader().format(fields["format"], "/format", 0)
    fields = _fields(given, "", ("structures", "triggers"), ("type",))
    return _Reader().older(fields)


class _Reader:
    def __init__(self) -> None:
        self._count = 0

    def format(self, raw: object, pointer: str, depth: int) -> Format:
        given = _object(raw, pointer)
        self._count += 1
        if depth > MAX_DEPTH:
            raise wrong(pointer, "", f"formats nested deeper than {MAX_DEPTH}")
        if self._count > MAX_FORMATS:
            raise wrong(pointer, "", f"more than {MAX_FORMATS} formats")
        kind = given.get("type")
        if not isinstance(kind, str) or kind not in _READERS:
            raise wrong(pointer, "type", f"is one of {', '.join(_READERS)}, not {kind!a:.60}")
        required, optional, reader = _READERS[kind]
        fields = _fields(given, pointer, required, ("type", *optional))
        return reader(self, fields, pointer, depth)

    def formats(self, raw: object, pointer: str, depth: int) -> tuple[Format, ...]:
        items = _list(raw, pointer)
        return tuple(self.format(s, f"{pointer}/{i}", depth + 1) for i, s in enumerate(items))

    def tags(self, raw: object, pointer: str, depth: int) -> tuple[Tag, ...]:
        found = []
        for i, item in enumerate(_list(raw, pointer)):
            place = f"{pointer}/{i}"
            tag = self.format({"type": "tag", **_object(item, place)}, place, depth + 1)
            if not isinstance(tag, Tag):
                raise wrong(place, "type", "is tag")
            found.append(tag)
        return tuple(found)

    def older(self, fields: Json) -> Triggered:
        tags = []
        for i, item in enumerate(_list(fields["structures"], "/structures")):
            place = f"/structures/{i}"
            given = _fields(_object(item, place), place, ("begin", "schema", "end"), ())
            content = Inner("json_schema", given["schema"], f"{place}/schema")
            begin, end = _text(given, "begin", place), _text(given, "end", place)
            tags.append(Tag(begin, content, (end,), place))
        triggers = _texts(fields, "triggers", "")
        return Triggered(triggers, tuple(tags), False, False, (), "")


def _const(_: _Reader, given: Json, pointer: str, __: int) -> Format:
    return Const(_text(given, "value", pointer), pointer)


def _schema(_: _Reader, given: Json, pointer: str, __: int) -> Format:
    _only(given, "style", ("json", "python"), pointer)
    _only(given, "any_order", (False,), pointer)
    _only(given, "max_whitespace_cnt", (None,), pointer)
    _only(given, "excludes", ([],), pointer)
    style = given.get("style", "json")
    return Inner("json_schema", given["json_schema"], f"{pointer}/json_schema", style)


def _regex(_: _Reader, given: Json, pointer: str, __: int) -> Format:
    return Inner("regex", _text(given, "pattern", pointer, None), f"{pointer}/pattern")


def _grammar(_: _Reader, given: Json, pointer: str, __: int) -> Format:
    _only(given, "syntax", ("ebnf",), pointer)
    return Inner("ebnf", _text(given, "grammar", pointer, None), f"{pointer}/grammar")


def _any_text(_: _Reader, given: Json, pointer: str, __: int) -> Format:
    _only(given, "max_tokens", (None,), pointer)
    _only(given, "max_chars", (None,), pointer)
    return AnyText(_texts(given, "excludes", pointer), pointer)


def _sequence(reader: _Reader, given: Json, pointer: str, depth: int) -> Format:
    return Sequence(reader.formats(given["elements"], f"{pointer}/elements", depth), pointer)


def _or(reader: _Reader, given: Json, pointer: str, depth: int) -> Format:
    return Or(reader.formats(given["elements"], f"{pointer}/elements", depth), pointer)


def _tag(reader: _Reader, given: Json, pointer: str, depth: int) -> Format:
    ends = given["end"]
    ends = ends if isinstance(ends, list) else [ends]
    if not 0 < len(ends) <= MAX_TEXTS:
        raise wrong(pointer, "end", f"has {len(ends)} texts, 1 to {MAX_TEXTS} are possible")
    texts = tuple(dict.fromkeys(_checked(end, "end", pointer, MAX_TEXT) for end in ends))
    content = reader.format(given["content"], f"{pointer}/content", depth + 1)
    return Tag(_text(given, "begin", pointer), content, texts, pointer)


def _triggered(reader: _Reader, given: Json, pointer: str, depth: int) -> Format:
    return Triggered(
        _texts(given, "triggers", pointer),
        reader.tags(given["tags"], f"{pointer}/tags", depth),
        _flag(given, "at_least_one", pointer),
        _flag(given, "stop_after_first", pointer),
        _texts(given, "excludes", pointer),
        pointer,
    )


def _separated(reader: _Reader, given: Json, pointer: str, depth: int) -> Format:
    return Separated(
        reader.tags(given["tags"], f"{pointer}/tags", depth),
        _text(given, "separator", pointer),
        _flag(given, "at_least_one", pointer),
        _flag(given, "stop_after_first", pointer),
        pointer,
    )


def _repeated(low: int, high: int | None) -> _ReadFormat:
    def read(reader: _Reader, given: Json, pointer: str, depth: int) -> Format:
        part = reader.format(given["content"], f"{pointer}/content", depth + 1)
        return Repeated(part, low, high, pointer)

    return read


def _repeat(reader: _Reader, given: Json, pointer: str, depth: int) -> Format:
    for name, least in (("min", 0), ("max", -1)):
        count = given[name]
        is_count = isinstance(count, int) and not isinstance(count, bool)
        if not is_count or not least <= count <= MAX_REPEAT:
            raise wrong(pointer, name, f"is a count from {least} to {MAX_REPEAT}")
    high = None if given["max"] == -1 else given["max"]
    if high is not None and high < given["min"]:
        raise wrong(pointer, "max", "is less than min")
    part = reader.format(given["content"], f"{pointer}/content", depth + 1)
    return Repeated(part, given["min"], high, pointer)


_ReadFormat = Callable[[_Reader, Json, str, int], Format]
_TAGS = ("at_least_one", "stop_after_first")
_SCHEMA = ("style", "any_order", "max_whitespace_cnt", "excludes")
# By type: the fields that must be there, those that may be, and who reads them.
_READERS: dict[str, tuple[tuple[str, ...], tuple[str, ...], _ReadFormat]] = {
    "const_string": (("value",), (), _const),
    "json_schema": (("json_schema",), _SCHEMA, _schema),
    "regex": (("pattern",), (), _regex),
    "grammar": (("grammar",), ("syntax",), _grammar),
    "any_text": ((), ("excludes", "max_tokens", "max_chars"), _any_text),
    "sequence": (("elements",), (), _sequence),
    "or": (("elements",), (), _or),
    "tag": (("begin", "content", "end"), (), _tag),
    "triggered_tags": (("triggers", "tags"), (*_TAGS, "excludes"), _triggered),
    "tags_with_separator": (("tags", "separator"), _TAGS, _separated),
    "optional": (("content",), (), _repeated(0, 1)),
    "star": (("content",), (), _repeated(0, None)),
    "plus": (("content",), (), _repeated(1, None)),
    "repeat": (("content", "min", "max"), (), _repeat),
}


def _object(raw: object, pointer: str) -> Json:
    if not isinstance(raw, dict):
        raise wrong(pointer, "", f"is an object, not {raw!a:.60}")
    return raw


def _list(raw: object, pointer: str) -> list[Any]:
    if not isinstance(raw, list) or not raw:
        raise wrong(pointer, "", f"is a list of at least one, not {raw!a:.60}")
    return raw


def _fields(
    given: Json, pointer: str, required: tuple[str, ...], optional: tuple[str, ...]
) -> Json:
    for name in given:
        if name not in required and name not in optional:
            raise wrong(pointer, name, "there is no such field here")
    for name in required:
        if name not in given:
            raise wrong(pointer, name, "is missing")
    return given


def _checked(raw: object, name: str, pointer: str, most: int | None) -> str:
    if not isinstance(raw, str):
        raise wrong(pointer, name, f"is a text, not {raw!a:.60}")
    if most is not None and len(raw) > most:
        raise wrong(pointer, name, f"has {len(raw)} characters, {most} are possible")
    if any(0xD800 <= ord(char) <= 0xDFFF for char in raw):
        raise wrong(pointer, name, "holds a lone surrogate")
    return raw


def _text(given: Json, name: str, pointer: str, most: int | None = MAX_TEXT) -> str:
    return _checked(given[name], name, pointer, most)


def _texts(given: Json, name: str, pointer: str) -> tuple[str, ...]:
    raw = given.get(name, [])
    if not isinstance(raw, list):
        raise wrong(pointer, name, f"is a list of texts, not {raw!a:.60}")
    if len(raw) > MAX_TEXTS:
        raise wrong(pointer, name, f"has {len(raw)} texts, {MAX_TEXTS} are possible")
    for i, text in enumerate(raw):
        if not _checked(text, f"{name}/{i}", pointer, MAX_TEXT):
            raise wrong(pointer, f"{name}/{i}", "is empty")
    return tuple(dict.fromkeys(raw))


def _flag(given: Json, name: str, pointer: str) -> bool:
    raw = given.get(name, False)
    if not isinstance(raw, bool):
        raise wrong(pointer, name, f"is true or false, not {raw!a:.60}")
    return raw


def _only(given: Json, name: str, possible: tuple[Any, ...], pointer: str) -> None:
    """Refuse values of an option that ask for what is not done here."""
    if name in given and not any(
        type(given[name]) is type(one) and given[name] == one for one in possible
    ):
        raise wrong(pointer, name, f"{given[name]!a:.60} is not supported")
