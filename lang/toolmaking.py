"""From Python to tools: functions, classes and dicts.

Owns: what gen() may say of tools, the schema of a function's arguments, calling it with what a
model wrote. pydantic does
the work; it is loaded when the first function or class is given. Must not know: states, backends.
"""

from __future__ import annotations

import functools
import inspect
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from radixserve.lang.toolkit import MODES, Calling, Tool, check_name, named_in
from radixserve.lang.typed import adapter_of, close_objects, validated

MAX_TOOLS = 128
_FIELDS = {"name", "description", "parameters", "strict"}


def calling(tools: Any, tool_choice: Any, parallel_tool_calls: Any) -> Calling | None:
    """What gen() says of tools; None where it says nothing. Raises TypeError or ValueError naming
    the argument."""
    if tools is None and tool_choice is None and parallel_tool_calls is None:
        return None
    if not isinstance(parallel_tool_calls, bool | None):
        raise TypeError(f"parallel_tool_calls is true or false, not {parallel_tool_calls!r}")
    made = None if tools is None else toolset(tools)
    choice = _choice(tool_choice)
    for name in named_in(choice) if made is not None else ():
        known = [tool.name for tool in made or ()]
        if name not in known:
            modes = ", ".join(MODES)
            raise ValueError(
                f"tool_choice is {modes} or the name of one of the tools, {', '.join(known)}; "
                f"not {name!r}"
            )
    return Calling(made, choice, parallel_tool_calls is not False)


def toolset(tools: Any, what: str = "tools") -> tuple[Tool, ...]:
    """The tools that a program gives: functions, classes, OpenAI's dicts. what: the argument."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        raise TypeError(f"{what} is a list of functions, classes or dicts, not {tools!r}")
    made = tuple(tool_of(each, f"{what}[{i}]") for i, each in enumerate(tools))
    if not made:
        raise ValueError(f"{what} is empty: there is nothing to call")
    if len(made) > MAX_TOOLS:
        raise ValueError(f"{what} has {len(made)} entries, {MAX_TOOLS} are possible")
    seen: set[str] = set()
    for i, tool in enumerate(made):
        if tool.name in seen:
            raise ValueError(f"{what}[{i}]: two tools are called {tool.name!r}")
        seen.add(tool.name)
    return made


def tool_of(given: Any, at: str) -> Tool:
    """The tool that `given` is: a Tool, a dict of OpenAI's chat, a function (its signature and
    docstring), or a class of which the arguments are an object. at: for errors.

    Raises TypeError or ValueError for what is none.
    """
    if isinstance(given, Tool):
        return given
    if isinstance(given, Mapping):
        return _from_dict(given, at)
    if not callable(given):
        raise TypeError(f"{at} is a function, a class or a dict, not {given!r}")
    try:
        make = _from_class if isinstance(given, type) else _from_function
        return make(given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{at}: {error}") from None


def _from_dict(given: Mapping[str, Any], at: str) -> Tool:
    if given.keys() != {"type", "function"} or given["type"] != "function":
        raise ValueError(f'{at} is {{"type": "function", "function": {{..}}}}, not {given!r}')
    function = given["function"]
    if not isinstance(function, Mapping) or not function.keys() <= _FIELDS:
        raise ValueError(f"{at}.function is an object of {', '.join(sorted(_FIELDS))}")
    check_name(function.get("name"), f"{at}.function.name")
    parameters = function.get("parameters")
    if parameters is not None and (
        not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object"
    ):
        raise ValueError(f"{at}.function.parameters is the schema of an object, not {parameters!r}")
    try:
        return Tool(json.loads(json.dumps(dict(given), allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{at} is not JSON: {error}") from None


# Programs name their tools anew in every run.
@functools.lru_cache(maxsize=256)
def _from_function(func: Callable[..., Any]) -> Tool:
    name = check_name(getattr(func, "__name__", None), "a function")
    adapter = adapter_of(_arguments(func, name))

    def run(arguments: dict[str, Any]) -> Any:
        return func(**validated(adapter, arguments, name))

    return _made(name, inspect.getdoc(func), adapter.json_schema(), run)


@functools.lru_cache(maxsize=256)
def _from_class(kind: type[Any]) -> Tool:
    name = check_name(kind.__name__, "a class")
    adapter = adapter_of(kind)
    schema = adapter.json_schema()
    if schema.get("type") != "object" and "$ref" not in schema:
        raise TypeError(f"{name} is no class with fields: its values are not objects")
    description = inspect.getdoc(kind) if "__doc__" in vars(kind) else None
    if description is not None and description.startswith(f"{name}("):
        description = None  # as a dataclass writes its own
    return _made(name, description, schema, lambda arguments: validated(adapter, arguments, name))


def _made(
    name: str, description: str | None, schema: dict[str, Any], run: Callable[..., Any]
) -> Tool:
    function: dict[str, Any] = {"name": name}
    if description:
        function["description"] = description
    close_objects(schema)
    function["parameters"] = _bare(schema)
    function["parameters"].pop("description", None)  # stands beside the name
    return Tool({"type": "function", "function": function}, run)


def _arguments(func: Callable[..., Any], name: str) -> Any:
    """A TypedDict of the function's arguments."""
    import typing_extensions

    hints = _hints(func, name)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(func).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name}(): {parameter} has no name that a model could give")
        if parameter.name not in hints:
            raise TypeError(f"{name}(): {parameter.name} has no annotation")
        is_needed = parameter.default is parameter.empty
        wrap = typing_extensions.Required if is_needed else typing_extensions.NotRequired
        fields[parameter.name] = wrap[hints[parameter.name]]
    return typing_extensions.TypedDict(name, fields)  # type: ignore[operator]


def _hints(func: Callable[..., Any], name: str) -> dict[str, Any]:
    """The types of its parameters; what it returns is nothing that a model is told."""
    inner = inspect.unwrap(getattr(func, "__func__", func))
    annotations = {
        each: kind
        for each, kind in getattr(inner, "__annotations__", {}).items()
        if each != "return"
    }
    holder = types.SimpleNamespace(__annotations__=annotations)
    try:
        return typing.get_type_hints(holder, getattr(inner, "__globals__", {}), include_extras=True)
    except (NameError, AttributeError, SyntaxError) as error:
        raise TypeError(f"{name}(): an annotation cannot be read: {error}") from None


def _bare(schema: Any) -> Any:
    """Without the titles that pydantic makes of names, which a model would have to read."""
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    bare: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            bare[key] = {name: _bare(each) for name, each in value.items()}
        elif key != "title":
            bare[key] = value if key in ("const", "enum", "default", "examples") else _bare(value)
    return bare


def _choice(given: Any) -> str | dict[str, Any] | None:
    match given:
        case None | "auto" | "required" | "none":
            return given
        case str():
            return {"type": "function", "function": {"name": given}}
        case {"type": "function", "function": {"name": str()}}:
            return dict(given)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required"}} if named_in(
            given
        ):
            return dict(given)
        case _ if callable(given) and isinstance(getattr(given, "__name__", None), str):
            return {"type": "function", "function": {"name": given.__name__}}
    raise ValueError(
        f"tool_choice is {', '.join(MODES)}, the name of a tool, or an object of OpenAI's chat, "
        f"not {given!r}"
    )
