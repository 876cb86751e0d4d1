"""A compiled program: a graph of calls, and the ways of running and keeping it.

Owns: what compile() gives. Must not know: how a graph is found, how calls are made.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from typing import Any

from radixserve.lang.backends.base import Backend
from radixserve.lang.backends.engine import EngineLink
from radixserve.lang.compiled.coding import graph_to_json, not_portable
from radixserve.lang.compiled.drawing import traced_calls
from radixserve.lang.compiled.graph import Graph, Write
from radixserve.lang.compiled.reading import read_graph
from radixserve.lang.compiled.values import Template, Use
from radixserve.lang.compiled.warm import warm_prefix
from radixserve.lang.compiled.ways import Ways
from radixserve.lang.errors import GraphError, ProgramError
from radixserve.lang.ir import RoleBegin, RoleEnd
from radixserve.lang.runnable import Opener, Runnable, Way
from radixserve.lang.trace import Trace

_STATE = "radixserve_state"


class Compiled(Runnable):
    """A program as a graph of calls; f.compile() and Compiled.from_json() make one.

    It is run as the program is, by run(), arun(), run_batch() and arun_batch(), with the arguments
    that were left open, and gives the same states. Calls that do not need each other are made side
    by side, also where the program's lines would wait.
    """

    def __init__(self, graph: Graph) -> None:
        state = inspect.Parameter(_STATE, inspect.Parameter.POSITIONAL_ONLY)
        either = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(name, either) for name in graph.parameters]
        self._graph = graph
        self.__name__ = graph.name
        signature = inspect.Signature([state, *parameters])
        self._ways = Ways(graph, signature)
        super().__init__(self._ways.here.func, signature, {})

    def __repr__(self) -> str:
        count = len(self._graph.calls)
        return f"<compiled {self.__name__}({', '.join(self.parameters)}), {count} calls>"

    @property
    def graph(self) -> dict[str, Any]:
        """The graph as plain values of JSON; docs/language.md says what they mean."""
        return graph_to_json(self._graph)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The arguments that a run takes."""
        return self._graph.parameters

    @property
    def constant_prefix(self) -> str:
        """What every run's first prompt begins with, marked as in ProgramState.text()."""
        return self._graph.constant_prefix

    @property
    def waves(self) -> list[list[int]]:
        """The calls by their step, in groups that run side by side."""
        return self._graph.waves

    def to_json(self) -> str:
        """The graph as text. Raises ProgramError where the text would not do the same."""
        why = not_portable(self._graph)
        if why is not None:
            raise ProgramError(f"{self.__name__} has no JSON form: {why}")
        return json.dumps(self.graph, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Compiled:
        """What to_json() wrote, or anyone. Raises GraphError naming the JSON pointer.

        Types of schema= are Python's and not in it: such a variable is the text there.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise GraphError("", f"this is no JSON: {error}") from None
        return cls(read_graph(data))

    def trace(self) -> Trace:
        """The calls, with what each sends that its parent did not know."""
        return traced_calls(self._graph)

    def draw(self) -> None:
        """Print the calls as a tree; parameters and values in braces."""
        print(self.trace())

    def warm(self, backend: Backend | EngineLink | None = None) -> int:
        """Have the backend's cache hold the constant prefix; how many tokens that is.

        Raises Unsupported where a backend has no cache that a program could warm.
        """
        return warm_prefix(self._graph, backend)

    def _way(self, opener: Opener, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Way:
        bound = self._signature.bind(None, *args, **kwargs).arguments
        return replace(self._ways.choose(opener), order=lambda: first_text(self._graph, bound))

    def way_with(self, opener: Opener, arguments: dict[str, Any]) -> Way:
        """The way for these arguments, whatever others it is called with."""
        way = self._way(opener, (), arguments)
        func = way.func

        def call(state: Any, *_: Any, **__: Any) -> Any:
            return func(state, **arguments)

        async def acall(state: Any, *_: Any, **__: Any) -> Any:
            return await func(state, **arguments)

        made = acall if inspect.iscoroutinefunction(func) else call
        made.__name__ = self.__name__
        return replace(way, func=made)

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            super()._check(args, kwargs)
        except TypeError as error:
            takes = ", ".join(self.parameters) or "none"
            raise TypeError(f"{error} (compiled; its parameters are: {takes})") from None


def first_text(graph: Graph, arguments: dict[str, Any]) -> str:
    """What stands in the root's prompt before the first call or the first value of a call."""
    texts: list[str] = []
    for number in graph.branches[0]:
        do = graph.steps[number].do
        match do:
            case Write(text=text):
                known = _known(text, arguments)
                texts += known
                if len(known) < len(text.pieces):
                    break
            case RoleBegin(role=role) | RoleEnd(role=role):
                texts.append(f"<{role}>")
            case _ if number in graph.calls:
                break
            case _:
                pass
    return "".join(texts)


def _known(text: Template, arguments: dict[str, Any]) -> list[str]:
    known: list[str] = []
    for piece in text.pieces:
        match piece:
            case str():
                known.append(piece)
            case Use(source=str() as name, item=None):
                known.append(str(arguments[name]))
            case _:
                break
    return known
