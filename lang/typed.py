"""Values of Python types: what the model is bound to write for one, and how its text is read.

Owns: the constraint for a type, and making the object. pydantic does the work; it is loaded when
the first type is named. Must not know: how a constraint is enforced, states.
"""

from __future__ import annotations

import enum
import functools
import json
import operator
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from radixserve.lang.errors import TypedOutputError


@dataclass(frozen=True, slots=True)
class Typed:
    """bound: keyword arguments of constraint(). read: the object of a text; raises
    TypedOutputError where the text is none.
    """

    bound: dict[str, Any]
    read: Callable[[str], Any]


def typed(kind: Any) -> Typed:
    """For pydantic models, dataclasses, TypedDicts, Literal, Enum, int, float, bool, str, list,
    Union and Annotated of them.

    Texts of a Literal or an Enum stand as they are; all else is JSON, a str in its quotes. Raises
    TypeError for what pydantic makes no schema of.
    """
    try:
        return _typed_once(kind)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _typed(kind)


def _typed(kind: Any) -> Typed:
    if isinstance(kind, dict):
        raise TypeError("schema= takes a Python type; a JSON schema belongs in json_schema=")
    words = _words(kind)
    if words is not None:
        return Typed({"choice": tuple(words)}, functools.partial(_read_word, kind, words))
    import pydantic

    try:
        adapter = adapter_of(kind)
    except TypeError as error:
        raise TypeError(f"schema={kind!r}: {error}") from None
    schema = adapter.json_schema()
    close_objects(schema)

    def read(text: str) -> Any:
        try:
            return adapter.validate_json(text)
        except pydantic.ValidationError as error:
            raise TypedOutputError(f"{text!r} is no {_name(kind)}: {error}", text) from None

    return Typed({"json_schema": schema}, read)


# Programs name the type anew in every run; making its schema takes longer than a call.
_typed_once = functools.lru_cache(maxsize=256)(_typed)


def adapter_of(kind: Any) -> Any:
    """pydantic's TypeAdapter, which has a schema. Raises TypeError where pydantic makes none."""
    import pydantic

    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(_portable(kind))
        adapter.json_schema()
    except (pydantic.PydanticUserError, pydantic.errors.PydanticUndefinedAnnotation) as error:
        raise TypeError(str(error)) from None
    return adapter


def validated(adapter: Any, arguments: dict[str, Any], name: str) -> Any:
    """The value of a call's arguments. Raises TypedOutputError where they are none of `name`."""
    import pydantic

    try:
        return adapter.validate_python(arguments)
    except pydantic.ValidationError as error:
        text = json.dumps(arguments, ensure_ascii=False)
        raise TypedOutputError(f"{text} are no arguments of {name}: {error}", text) from None


def _words(kind: Any) -> dict[str, Any] | None:
    """The values of a Literal of texts or an Enum of texts, by text; None for other types."""
    values: dict[Any, Any]
    if get_origin(kind) is Literal:
        values = {value: value for value in get_args(kind)}
    elif isinstance(kind, enum.EnumMeta):
        values = {member.value: member for member in list[enum.Enum](kind)}
    else:
        return None
    return values if values and all(type(text) is str for text in values) else None


def _read_word(kind: Any, words: dict[str, Any], text: str) -> Any:
    if text not in words:
        raise TypedOutputError(f"{text!r} is no {_name(kind)}", text)
    return words[text]


def close_objects(schema: Any) -> None:
    """Fields that a type does not have would be written and then dropped: allow none."""
    if isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for value in schema.values():
            close_objects(value)
    elif isinstance(schema, list):
        for value in schema:
            close_objects(value)


def _portable(kind: Any) -> Any:
    """`kind` with each typing.TypedDict as the one that pydantic takes before Python 3.12."""
    import typing_extensions

    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        optional = kind.__optional_keys__
        fields = {
            name: typing_extensions.NotRequired[_portable(hint)]
            if name in optional and get_origin(hint) is not typing.NotRequired
            else _portable(hint)
            for name, hint in hints.items()
        }
        return typing_extensions.TypedDict(kind.__name__, fields)  # type: ignore[operator]
    origin, parts = get_origin(kind), get_args(kind)
    if not parts or origin is Literal:
        return kind
    if origin is Annotated:
        return Annotated[(_portable(parts[0]), *parts[1:])]
    inner = tuple(_portable(part) for part in parts)
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, inner)
    return origin[inner] if inner != parts else kind


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or repr(kind)
