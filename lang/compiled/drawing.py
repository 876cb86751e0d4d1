"""The calls of a graph as trace() shows them.

Owns: the places of calls, as a run will number them, and what each sends anew. Must not know: how a
graph is run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from radixserve.lang.asking import Place
from radixserve.lang.compiled.graph import Doing, Fork, Graph, Pick, Write
from radixserve.lang.compiled.values import Template, Use
from radixserve.lang.history import MARKS
from radixserve.lang.ir import Gen, RoleBegin, RoleEnd
from radixserve.lang.toolkit import named_in
from radixserve.lang.trace import Trace, TracedCall


@dataclass(slots=True)
class _Line:
    """A branch as it is walked. text: since its last call."""

    place: Place
    text: list[str] = field(default_factory=list)


def traced_calls(graph: Graph) -> Trace:
    """The calls in the order of their steps, parents first."""
    lines = {0: _Line(Place(""))}
    calls: list[TracedCall] = []
    for step in graph.steps:
        line = lines[step.on]
        match step.do:
            case Gen() | Pick():
                calls.append(_call(graph, step.do, line))
                line.text.clear()
            case Fork(children=children):
                places = line.place.fork(len(children))
                lines |= {
                    child: _Line(place, list(line.text)) for child, place in zip(children, places)
                }
            case _:
                line.text.append(_shown(graph, step.do))
    return Trace(graph.name, calls)


def _call(graph: Graph, do: Gen | Pick, line: _Line) -> TracedCall:
    told = line.place.next_call()
    choices = tuple(_spelt(graph, choice) for choice in do.choices) if isinstance(do, Pick) else ()
    return TracedCall(
        told["call"],
        told["parent"],
        "select" if isinstance(do, Pick) else "gen",
        do.name,
        "".join(line.text),
        choices,
        _callable(graph, do),
    )


def _callable(graph: Graph, do: Gen | Pick) -> tuple[str, ...]:
    """Names of the tools that a gen may call."""
    calling = getattr(do, "tools", None)
    if calling is None or calling.choice == "none":
        return ()
    known = calling.tools or graph.tools
    return tuple(named_in(calling.choice) or [tool.name for tool in known])


def _shown(graph: Graph, do: Doing) -> str:
    match do:
        case Write(text=text):
            return _spelt(graph, text)
        case RoleBegin(role=role):
            return MARKS[role]
        case RoleEnd():
            return "\n"
        case _:
            return ""


def _spelt(graph: Graph, text: Template) -> str:
    return "".join(
        piece if isinstance(piece, str) else f"{{{_name(graph, piece)}}}" for piece in text.pieces
    )


def _name(graph: Graph, use: Use) -> str:
    if isinstance(use.source, str):
        return use.source
    do = graph.steps[use.source].do
    name = str(getattr(do, "name", None) or "text")
    name = name if use.item is None else f"{name}[{use.item}]"
    return f"{name}.{use.part}" if use.part else name
