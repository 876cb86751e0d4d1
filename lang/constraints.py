"""What a generated text is bound to, as programs say it.

Owns: the ways of saying it, which exclude each other, SGLang's dtypes as regexes. Must not know:
how a constraint is enforced; the backend says whether one can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

# As SGLang has them: the blank behind a number is what the text stops at.
_REGEX = {
    "int": r"[-+]?[0-9]+[ \n]*",
    "float": r"[-+]?[0-9]*\.?[0-9]+[ \n]*",
    "str": r'"[\w\d\s]*"',
    "bool": r"(True|False)",
}
_STOPS = {"int": (" ", "\n"), "float": (" ", "\n")}


def constraint(
    *, dtype: object = None, whitespace: str | None, constraint_mode: str | None, **kinds: Any
) -> dict[str, Any]:
    """The fields of Sampling that bind a text. kinds: regex, json_schema, .., None where not said.

    Raises ValueError where two are said, or an option without a constraint; TypeError for a value
    that is none.
    """
    said = {
        name: value for name, value in kinds.items() if value is not None and value is not False
    }
    if dtype is not None:
        said["dtype"] = dtype
    if len(said) > 1:
        first, second, *_ = said
        raise ValueError(f"{first} and {second} exclude each other")
    options = {"whitespace": whitespace, "constraint_mode": constraint_mode}
    given = {name: value for name, value in options.items() if value is not None}
    if not said and given:
        raise ValueError(f"{next(iter(given))} has no effect without a constraint")
    for name, value in said.items():
        return _READERS[name](value) | given
    return {}


def _dtype(value: object) -> dict[str, Any]:
    name = value.__name__ if value in (int, float, str, bool) else value
    if not isinstance(name, str) or name not in _REGEX:
        raise ValueError(f"dtype is int, float, str or bool, not {value!r}")
    return {"regex": _REGEX[name], "more_stop": _STOPS.get(name, ())}


def _text(name: str) -> Callable[[object], dict[str, Any]]:
    def read(value: object) -> dict[str, Any]:
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, not {value!r}")
        return {name: value}

    return read


def _json_schema(value: Any) -> dict[str, Any]:
    """Text, a schema as Python has it, or a pydantic model."""
    if hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    if not isinstance(value, str | dict | bool):
        raise TypeError(f"json_schema must be a str or a dict, not {value!r}")
    return {"json_schema": value}


def _choice(value: object) -> dict[str, Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"choice must be a list of strings, not {value!r}")
    texts = tuple(value)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"choice must be a list of strings, not {value!r}")
    if not texts:
        raise ValueError("choice is empty: there is nothing to write")
    return {"choice": texts}


def _structural_tag(value: object) -> dict[str, Any]:
    if not isinstance(value, str | dict):
        raise TypeError(f"structural_tag must be a str or a dict, not {value!r}")
    return {"structural_tag": value}


def _json_object(value: object) -> dict[str, Any]:
    if value is not True:
        raise TypeError(f"json_object must be true or false, not {value!r}")
    return {"json_object": True}


_READERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "dtype": _dtype,
    "regex": _text("regex"),
    "ebnf": _text("ebnf"),
    "json_schema": _json_schema,
    "choice": _choice,
    "structural_tag": _structural_tag,
    "json_object": _json_object,
}
