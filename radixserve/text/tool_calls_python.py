"""Tool calls that are Python: [get_weather(city="Paris"), now()].

Owns: reading them, and how arguments are written so. Must not know: requests.

An output that begins with such a list is one; it is told when the list is whole.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
import warnings
from collections.abc import Iterable
from typing import Any

from radixserve.errors import InvalidRequest
from radixserve.text.tool_calls_stream import Source, Steps

MAX_CHARS = 100_000
_MAY_BEGIN = re.compile(r"\s*(\[\s*([A-Za-z_][\w-]*\s*(\(|\Z)|\Z)|\Z)")
_TOKEN = re.compile(r"""[\[({]|[\])}]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|["']""", re.DOTALL)
_NAMES = {"true": True, "false": False, "null": None}


def check_names(names: Iterable[str]) -> None:
    """Raises InvalidRequest for a function that Python could not call."""
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise InvalidRequest(
                f"this model writes its calls as Python, in which {name!r} is no name",
                param="tools",
                code="unsupported_parameter",
            )


def keywords(arguments: str) -> str:
    """The arguments of a call, by name. arguments: JSON of an object."""
    given: dict[str, Any] = json.loads(arguments)
    return ", ".join(f"{name}={_python(value)}" for name, value in given.items())


def _python(value: Any) -> str:
    match value:
        case bool() | None:
            return repr(value)
        case dict():
            return "{" + ", ".join(f"{_python(k)}: {_python(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_python, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def pythonic(source: Source) -> Steps:
    seen = 0
    while _MAY_BEGIN.match(source.text) and len(source.text) <= MAX_CHARS:
        end = _end(source.text) if "]" in source.text[seen:] else None
        seen = len(source.text)
        if end is not None:
            calls = _calls(source.text[:end], source)
            if calls is not None:
                source.take(end)
                for name, arguments in calls:
                    source.call(name, arguments)
            return
        if source.ended:
            return
        yield


def _end(text: str) -> int | None:
    """The place behind the bracket that closes the first; None where it is still open."""
    depth = 0
    for token in _TOKEN.finditer(text):
        if token[0] in ('"', "'"):
            return None  # a string that is not closed
        if token[0] in "[({":
            depth += 1
        elif token[0] in "])}":
            depth -= 1
            if depth <= 0:
                return token.end()
    return None


def _calls(text: str, source: Source) -> list[tuple[str, str]] | None:
    """(name, JSON of the arguments) of each call; None where it is no list of known calls."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python knows not
            found = ast.parse(text.strip(), mode="eval").body
        if not isinstance(found, ast.List) or not found.elts:
            return None
        calls = [_call(item) for item in found.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return calls if all(name in source.names for name, _ in calls) else None


def _call(node: ast.expr) -> tuple[str, str]:
    """Raises ValueError for what is no call with named literals."""
    if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, ast.Name):
        raise ValueError("no call with named arguments")
    named: dict[str, Any] = {}
    for each in node.keywords:
        if each.arg is None or each.arg in named:
            raise ValueError("arguments without a name, or twice the same")
        named[each.arg] = _literal(each.value)
    return node.func.id, json.dumps(named, allow_nan=False)


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _literal(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("no literal")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("a key that is no string")
