"""Reading the fields of a graph's JSON form; each error names the JSON pointer.

Owns: the shapes of names, texts, values and sampling parameters. Must not know: steps.
"""

from __future__ import annotations

import keyword
import math
from typing import Any, NoReturn

from radixserve.lang.compiled.values import PARTS, Piece, Template, Use, Value, template
from radixserve.lang.constraints import constraint
from radixserve.lang.errors import GraphError
from radixserve.lang.limits import bias, seconds
from radixserve.lang.sampling import FIELDS, Sampling
from radixserve.lang.toolkit import Calling, Tool
from radixserve.lang.toolmaking import calling as of_tools
from radixserve.lang.toolmaking import toolset

JSON = dict[str, Any]
OF_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")
MAX_NAME = 256
MAX_DEPTH = 64

_BOUND = ("regex", "json_schema", "ebnf", "choice", "structural_tag", "json_object")
_OPTIONS = ("whitespace", "constraint_mode")
_LISTS = ("stop", "stop_regex", "stop_token_ids", "choice", "more_stop")


def fail(pointer: str, message: str) -> NoReturn:
    raise GraphError(pointer, message)


def step_down(at: str, name: object) -> str:
    """The pointer to a member."""
    return f"{at}/{str(name).replace('~', '~0').replace('/', '~1')}"


def obj(data: object, at: str, needed: tuple[str, ...], optional: tuple[str, ...] | None) -> JSON:
    """An object with these members and no others; optional None: any others."""
    if not isinstance(data, dict):
        fail(at, f"an object is needed, not {_kind(data)}")
    for name in needed:
        if name not in data:
            fail(at, f"{name!r} is missing")
    for name in data:
        if optional is not None and name not in needed and name not in optional:
            fail(
                step_down(at, name),
                f"there is no such member; known: {', '.join((*needed, *optional))}",
            )
    return data


def array(data: object, at: str) -> list[Any]:
    if not isinstance(data, list):
        fail(at, f"a list is needed, not {_kind(data)}")
    return data


def whole(data: object, at: str) -> int:
    """A whole number from 0."""
    if type(data) is not int or data < 0:
        fail(at, f"a whole number from 0 is needed, not {data!r:.40}")
    return data


def name(data: object, at: str) -> str:
    if not isinstance(data, str) or not 1 <= len(data) <= MAX_NAME:
        fail(at, f"a name has from 1 to {MAX_NAME} characters; this is {data!r:.40}")
    return data


def identifier(data: object, at: str) -> str:
    """A name that Python takes for a parameter."""
    known = name(data, at)
    if not known.isidentifier() or keyword.iskeyword(known):
        fail(at, f"{known!r:.60} is no name of a parameter")
    return known


def variable(data: object, at: str) -> str | None:
    return None if data is None else name(data, at)


def timeout(data: Any, at: str) -> float | None:
    try:
        return seconds(data)
    except (TypeError, ValueError) as error:
        fail(at, str(error))


def text(data: object, at: str) -> Template:
    """A string, or a list of strings and uses."""
    if isinstance(data, str):
        return template([data])
    return template(_piece(each, f"{at}/{i}") for i, each in enumerate(array(data, at)))


def value(data: object, at: str, depth: int = 0) -> Value:
    """A plain value, or an object that says which kind of value it is."""
    if depth > MAX_DEPTH:
        fail(at, f"values are nested more than {MAX_DEPTH} deep")
    match data:
        case None | bool() | int() | str():
            return data
        case float() if math.isfinite(data):
            return data
        case {"arg": _} | {"ref": _}:
            return _use(data, at)
        case {"text": pieces, **rest} if not rest:
            made = text(pieces, f"{at}/text")
            return made.constant if made.constant is not None else made
        case {"list": listed, **rest} if not rest:
            return _values(listed, f"{at}/list", depth)
        case {"tuple": listed, **rest} if not rest:
            return tuple(_values(listed, f"{at}/tuple", depth))
        case {"dict": dict() as members, **rest} if not rest:
            at = f"{at}/dict"
            return {
                key: value(each, step_down(at, key), depth + 1) for key, each in members.items()
            }
    fail(at, "a value is a string, a number, true, false, null, or an object with one of arg, ref, "
         "text, list, tuple and dict")  # fmt: skip


def sampling(data: object, at: str) -> Sampling:
    """The sampling parameters of a gen, by the names of lang.sampling; null is not said."""
    given = obj(data, at, (), FIELDS)
    said = {key: each for key, each in given.items() if each is not None}
    for key in _LISTS:
        if key in said:
            said[key] = _flat(said[key], f"{at}/{key}")
    if "logit_bias" in said:
        said["logit_bias"] = _bias(said["logit_bias"], f"{at}/logit_bias")
    try:
        bound = {key: said.pop(key) for key in (*_BOUND, *_OPTIONS) if key in said}
        options = {key: bound.pop(key, None) for key in _OPTIONS}
        return Sampling(**said, **constraint(**bound, **options))
    except (TypeError, ValueError) as error:
        message = str(error)
        at_fault = message.split(" ", 1)[0]
        fail(step_down(at, at_fault) if at_fault in given else at, message)


def tools(data: object, at: str) -> tuple[Tool, ...]:
    """Tools as OpenAI's chat has them."""
    for i, each in enumerate(array(data, at)):
        obj(each, f"{at}/{i}", ("type", "function"), ())
    try:
        return toolset(data)
    except (TypeError, ValueError) as error:
        fail(at, str(error))


def calling(data: JSON, at: str) -> Calling | None:
    """What a gen may call; None where nothing is said of that."""
    given = [data.get(key) for key in OF_TOOLS]
    made = None if given[0] is None else tools(given[0], f"{at}/tools")
    try:
        return of_tools(made, *given[1:])
    except (TypeError, ValueError) as error:
        at_fault = str(error).split(" ", 1)[0]
        fail(step_down(at, at_fault) if at_fault in OF_TOOLS else at, str(error))


def _piece(data: object, at: str) -> Piece:
    return data if isinstance(data, str) else _use(data, at)


def _use(data: object, at: str) -> Use:
    kind = "arg" if isinstance(data, dict) and "arg" in data else "ref"
    given = obj(data, at, (kind,), ("item", "format", "part"))
    pointer = f"{at}/{kind}"
    source = name(given[kind], pointer) if kind == "arg" else whole(given[kind], pointer)
    item = None if given.get("item") is None else whole(given["item"], f"{at}/item")
    is_formatted = given.get("format", False)
    if not isinstance(is_formatted, bool):
        fail(f"{at}/format", "format is true or false")
    part = given.get("part") or ""
    if part and part not in PARTS:
        fail(f"{at}/part", f"a part of a turn is {' or '.join(PARTS)}, not {part!r:.40}")
    return Use(source, item, is_formatted, part)


def _values(data: object, at: str, depth: int) -> list[Value]:
    return [value(each, f"{at}/{i}", depth + 1) for i, each in enumerate(array(data, at))]


def _flat(data: object, at: str) -> tuple[Any, ...]:
    listed = array(data, at)
    kind = int if at.endswith("/stop_token_ids") else str
    for i, each in enumerate(listed):
        if type(each) is not kind:
            fail(f"{at}/{i}", f"{_kind(each)} stands in a list of {kind.__name__}")
    return tuple(listed)


def _bias(data: object, at: str) -> dict[int, float] | None:
    if not isinstance(data, dict):
        fail(at, f"an object from token ids to numbers is needed, not {_kind(data)}")
    for key in data:
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 11):
            fail(step_down(at, key), "the key is no token id")
    try:
        return bias({int(key): addend for key, addend in data.items()})
    except (TypeError, ValueError) as error:
        fail(at, str(error))


def _kind(data: object) -> str:
    match data:
        case None:
            return "null"
        case bool():
            return "true or false"
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return "a string"
        case _:
            return "a number"
