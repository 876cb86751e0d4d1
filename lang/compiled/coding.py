"""The JSON form of a graph, version 1: writing it.

Owns: the names of its fields. reading.py reads them. Must not know: how a graph is run.
"""

from __future__ import annotations

from typing import Any

from radixserve.lang.choices import METHODS
from radixserve.lang.compiled.graph import (
    Doing,
    Fork,
    Graph,
    Join,
    Pick,
    SetTo,
    WholeText,
    Write,
    texts_need,
)
from radixserve.lang.compiled.values import Template, Use, Value
from radixserve.lang.ir import (
    Border,
    Declare,
    Gen,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    Thoughts,
)
from radixserve.lang.sampling import Sampling, said_fields
from radixserve.lang.toolkit import Calling

VERSION = 1
JSON = dict[str, Any]


def graph_to_json(graph: Graph) -> JSON:
    """Plain values of JSON."""
    return {
        "radixserve_program": VERSION,
        "name": graph.name,
        "parameters": list(graph.parameters),
        "steps": [{"on": step.on, **_doing(step.do)} for step in graph.steps],
        "returns": _value(graph.returns),
    }


def not_portable(graph: Graph) -> str | None:
    """Why another process would not do the same with the graph's JSON; None: it would."""
    in_texts = texts_need(graph)
    for number, step in enumerate(graph.steps):
        match step.do:
            case Gen(read=read) if read is not None and number in in_texts:
                name = step.do.name
                return f"step {number}: the object of gen({name!r}, schema=..) stands in a text"
            case Pick(method=method) if METHODS.get(method.name) is not method:
                return f"step {number}: choices_method {method.name!r} is Python code of yours"
            case _:
                pass
    return None


def _doing(do: Doing) -> JSON:
    match do:
        case Write(text=text):
            return {"do": "text", "text": _text(text)}
        case Gen():
            return _gen(do)
        case Pick():
            return _pick(do)
        case SetTo(name=name, value=value):
            return {"do": "set", "name": name, "value": _value(value)}
        case Thoughts(name=name, of=of):
            return {"do": "reasoning", "name": name, "of": of}
        case Fork(children=children):
            return {"do": "fork", "children": list(children)}
        case Join(children=children):
            return {"do": "join", "children": list(children)}
        case _:
            return _mark(do)


def _mark(do: Doing) -> JSON:
    match do:
        case RoleBegin(role=role):
            return {"do": "role_begin", "role": role}
        case RoleEnd(role=role):
            return {"do": "role_end", "role": role}
        case ScopeEnd(name=name):
            return {"do": "scope_end", "name": name}
        case ScopeBegin():
            return {"do": "scope_begin"}
        case Border():
            return {"do": "border"}
        case Declare(tools=tools):
            return {"do": "tools", "tools": [tool.spec for tool in tools]}
        case WholeText():
            return {"do": "whole_text"}
        case _:
            raise AssertionError(do)


def _gen(gen: Gen) -> JSON:
    written: JSON = {"do": "gen", "name": gen.name, "sampling": sampling_to_json(gen.sampling)}
    if gen.timeout is not None:
        written["timeout"] = gen.timeout
    return written | (calling_to_json(gen.tools) if gen.tools else {})


def calling_to_json(calling: Calling) -> JSON:
    """The fields of a gen that may call; without tools they are those of the conversation."""
    written: JSON = {"tool_choice": calling.choice or "auto"}
    if calling.tools is not None:
        written["tools"] = [tool.spec for tool in calling.tools]
    return written if calling.many else written | {"parallel_tool_calls": False}


def _pick(pick: Pick) -> JSON:
    written: JSON = {
        "do": "select",
        "name": pick.name,
        "choices": [_text(choice) for choice in pick.choices],
        "method": pick.method.name,
    }
    if pick.timeout is not None:
        written["timeout"] = pick.timeout
    return written


def sampling_to_json(sampling: Sampling) -> JSON:
    """What is said in it. Token ids that are keys become texts, tuples lists."""
    written: JSON = {}
    for name, value in said_fields(sampling).items():
        match value:
            case tuple():
                written[name] = list(value)
            case dict() if name == "logit_bias":
                written[name] = {str(token): addend for token, addend in value.items()}
            case _:
                written[name] = value
    return written


def _text(text: Template) -> str | list[Any]:
    if text.constant is not None:
        return text.constant
    return [piece if isinstance(piece, str) else _use(piece) for piece in text.pieces]


def _use(use: Use) -> JSON:
    written: JSON = {"arg" if isinstance(use.source, str) else "ref": use.source}
    if use.item is not None:
        written["item"] = use.item
    if use.part:
        written["part"] = use.part
    if use.is_formatted:
        written["format"] = True
    return written


def _value(value: Value) -> Any:
    match value:
        case Use():
            return _use(value)
        case Template():
            return {"text": _text(value)}
        case list():
            return {"list": [_value(each) for each in value]}
        case tuple():
            return {"tuple": [_value(each) for each in value]}
        case dict():
            return {"dict": {name: _value(each) for name, each in value.items()}}
        case _:
            return value
