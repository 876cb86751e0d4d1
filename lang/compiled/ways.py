"""Where a compiled program is run: its calls made here, or all of it at the backend.

Owns: the functions of a state that a run of a graph is, and the choice between them. Must not know:
how steps are done, how a request is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from radixserve.lang.backends.base import Body
from radixserve.lang.compiled.coding import graph_to_json, not_portable
from radixserve.lang.compiled.feed import AnsweredFeed, Feed, ProgramBackend, program_body
from radixserve.lang.compiled.graph import Graph
from radixserve.lang.compiled.replay import Replay
from radixserve.lang.runnable import Opener, Way
from radixserve.lang.state import OpenState


class Ways:
    """The ways of running one graph. here: each call is made by itself, on any backend.

    A backend that runs programs gets the whole graph in one request, where that means the same
    there; the states are then made here of the replies that it tells.
    """

    def __init__(self, graph: Graph, signature: inspect.Signature) -> None:
        self._graph = graph
        self._signature = signature
        is_portable = bool(graph.calls) and not_portable(graph) is None
        self._sent = graph_to_json(graph) if is_portable else None
        self.here = Way(self._named(self._run_here()))
        self._streamed = Way(self._named(self._stream()), Feed)
        self._asked = Way(self._named(self._ask()), AnsweredFeed)
        self._waited = Way(self._named(self._wait()), AnsweredFeed)

    def choose(self, opener: Opener) -> Way:
        """The way for runs with these settings."""
        if self._sent is None or not isinstance(opener.backend, ProgramBackend):
            return self.here
        if opener.settings.streaming:
            return self._streamed
        needs_loop = opener.timeout is not None or opener.retries > 0
        return self._asked if opener.on_loop or needs_loop else self._waited

    def _run_here(self) -> Callable[..., Any]:
        async def run(state: OpenState, *args: Any, **kwargs: Any) -> Any:
            return await self._replay(state, args, kwargs).go(state._branch)

        return run

    def _stream(self) -> Callable[..., Any]:
        async def stream(state: OpenState, *args: Any, **kwargs: Any) -> Any:
            replay = self._replay(state, args, kwargs)
            async with _feed(state).running(self._body(state, replay)):
                result = await replay.go(state._branch)
                await state._run.asettle()  # forks that nothing waits for are told here as well
                return result

        return stream

    def _ask(self) -> Callable[..., Any]:
        async def ask(state: OpenState, *args: Any, **kwargs: Any) -> Any:
            replay = self._replay(state, args, kwargs)
            await _feed(state).aask(self._body(state, replay))
            return replay.go_inline(state._branch)

        return ask

    def _wait(self) -> Callable[..., Any]:
        def wait(state: OpenState, *args: Any, **kwargs: Any) -> Any:
            replay = self._replay(state, args, kwargs)
            _feed(state).ask(self._body(state, replay))
            return replay.go_inline(state._branch)

        return wait

    def _replay(self, state: OpenState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Replay:
        bound = self._signature.bind(state, *args, **kwargs)
        arguments = {name: bound.arguments[name] for name in self._graph.parameters}
        return Replay(self._graph, arguments, state._run)

    def _body(self, state: OpenState, replay: Replay) -> Body:
        assert self._sent is not None
        return program_body(self._sent, replay.arguments, state._branch.interpreter.settings)

    def _named(self, func: Callable[..., Any]) -> Callable[..., Any]:
        func.__name__ = func.__qualname__ = self._graph.name
        return func


def _feed(state: OpenState) -> Feed:
    return cast("Feed", state._run.caller)
