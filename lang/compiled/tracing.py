"""Finding the graph of a program: its function is run on states that only take notes.

Owns: the runs, and the comparison of their graphs. Must not know: how a graph is run.

The function runs twice and calls no model; its other effects are real.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from radixserve.lang.compiled.coding import graph_to_json
from radixserve.lang.compiled.following import Following
from radixserve.lang.compiled.graph import Graph
from radixserve.lang.compiled.states import TracedAsyncState, TracedState, Track
from radixserve.lang.compiled.traced import LONG, SHORT, Recorder, TracedValue
from radixserve.lang.errors import DynamicProgram
from radixserve.lang.portal import Portal


class Placeholder:
    """Given to compile() for an argument that each run brings; the one instance is placeholder."""

    def __repr__(self) -> str:
        return "placeholder"

    def __format__(self, spec: str) -> str:
        raise TypeError("rs.placeholder is given for a whole argument, not for a part of one")

    def __str__(self) -> str:
        return format(self)


placeholder = Placeholder()


@dataclass(frozen=True, slots=True)
class Traced:
    """graph: complete where fault is None, else as far as the program came before it."""

    graph: Graph
    fault: DynamicProgram | None


def compile_graph(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Graph:
    """The graph of func(state, *args, **kwargs).

    Arguments that are `placeholder`, or not given and without a default, are brought by each run.
    Raises DynamicProgram where what the function does depends on a value that only a run has.
    """
    traced = trace_steps(func, args, kwargs)
    if traced.fault is not None:
        raise traced.fault
    return traced.graph


def trace_steps(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Traced:
    """What both traces have in common, from the beginning."""
    bound = inspect.signature(func).bind_partial(None, *args, **kwargs)
    first, second = (_Tracing(func, bound, shape).run() for shape in (SHORT, LONG))
    if first.fault is not None:
        return first
    one, two = graph_to_json(first.graph), graph_to_json(second.graph)
    if second.fault is None and one == two:
        return first
    fault = second.fault or DynamicProgram(
        f"{func.__name__}() does not do the same each time: it looks at a text that values stand "
        f"in, draws at random, or keeps something between its runs"
    )
    same = 0
    for mine, other in zip(one["steps"], two["steps"]):
        if mine != other:
            break
        same += 1
    graph = first.graph
    return Traced(Graph(graph.name, graph.parameters, graph.steps[:same]), fault)


class _Tracing:
    """One trace."""

    def __init__(
        self, func: Callable[..., Any], bound: inspect.BoundArguments, shape: tuple[str, str, str]
    ) -> None:
        self._func = func
        self._recorder = Recorder(shape)
        self._parameters: list[str] = []
        self._bound = inspect.BoundArguments(bound.signature, self._filled(bound))

    def run(self) -> Traced:
        recorder, name = self._recorder, self._func.__name__
        returned: Any = None
        try:
            at = (self._func.__code__.co_filename, self._func.__code__.co_firstlineno)
            returned = recorder.quote(self._result(), f"what {name}() returns", at)
            recorder.check_marks()
            recorder.check_kept()
        except DynamicProgram as fault:
            recorder.fault = recorder.fault or fault
        except Exception as error:
            # The program's own function: whatever it raises, it has no graph.
            recorder.fault = recorder.fault or self._failed(error)
        graph = Graph(name, tuple(self._parameters), tuple(recorder.steps), returned)
        return Traced(graph, recorder.fault)

    def _result(self) -> Any:
        track = Track(self._recorder, 0)
        if not inspect.iscoroutinefunction(self._func):
            return self._call(TracedState(track))
        with Portal("radixserve-trace") as portal:
            return portal.run(self._acall(TracedAsyncState(track)))

    def _call(self, state: Any) -> Any:
        _, *args = self._bound.args
        return Following(self._recorder).must(self._func)(state, *args, **self._bound.kwargs)

    async def _acall(self, state: Any) -> Any:
        return await self._call(state)

    def _filled(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        """The arguments, with what stands for those that are not there."""
        filled: dict[str, Any] = dict(bound.arguments)
        for parameter in list(bound.signature.parameters.values())[1:]:
            name = parameter.name
            if parameter.kind is parameter.VAR_POSITIONAL:
                if placeholder in filled.get(name, ()):
                    raise TypeError(f"placeholder is for named parameters, not for one of *{name}")
            elif parameter.kind is parameter.VAR_KEYWORD:
                more = filled.get(name, {}).items()
                filled[name] = {key: self._given(key, value) for key, value in more}
            else:
                filled[name] = self._given(name, filled.get(name, parameter.default))
        return filled

    def _given(self, name: str, value: Any) -> Any:
        if value is not placeholder and value is not inspect.Parameter.empty:
            return value
        self._parameters.append(name)
        return self._recorder.value(name, f"argument {name!r}")

    def _failed(self, error: Exception) -> DynamicProgram:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == self._func.__code__.co_filename
        ]
        reason = f"{self._func.__name__}() raised {type(error).__name__} while traced: {error}"
        filename, line = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)
        fault = DynamicProgram(reason, filename, line)
        fault.__cause__ = error
        return fault


__all__ = ["Placeholder", "Traced", "TracedValue", "compile_graph", "placeholder", "trace_steps"]
