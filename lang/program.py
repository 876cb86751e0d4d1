"""A program: a Python function of a state.

Owns: what @function makes of a function. Must not know: threads of a run, wire forms, how a graph
is found or run.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, overload

from radixserve.lang.backends.base import Backend
from radixserve.lang.backends.engine import EngineLink
from radixserve.lang.compiled.automatic import Automatic
from radixserve.lang.compiled.program import Compiled
from radixserve.lang.compiled.tracing import compile_graph, trace_steps
from radixserve.lang.compiled.warm import warm_prefix
from radixserve.lang.ir import Nested
from radixserve.lang.runnable import Opener, Runnable, Way
from radixserve.lang.state import OpenState
from radixserve.lang.trace import Trace, trace


class Program(Runnable):
    """What @function makes of a function, plain or async, whose first parameter is the state."""

    def __init__(
        self,
        func: Callable[..., Any],
        bound: dict[str, Any] | None = None,
        automatic: Automatic | None = None,
    ) -> None:
        super().__init__(func, inspect.signature(func), bound or {})
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = list(self._signature.parameters.values())
        if not parameters or parameters[0].kind not in positional:
            raise TypeError(f"{func.__name__}() needs the state as its first parameter")
        self._automatic = automatic
        functools.update_wrapper(self, func)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """With a state first: run on that state now, and return what the function returns.

        Without: an expression that does so where it is appended. An async program is awaited:
        `await f(s, ..)`.
        """
        kwargs = self._bound | kwargs
        if args and issubclass(type(args[0]), OpenState):
            return args[0]._called(self._func)(*args, **kwargs)
        self._check(args, kwargs)
        return Nested(self._func.__name__, self._func, args, kwargs)

    def __repr__(self) -> str:
        return f"<program {self._func.__qualname__}{self._signature}>"

    def bind(self, **kwargs: Any) -> Program:
        """The same program with these arguments given."""
        self._signature.bind_partial(None, **self._bound | kwargs)
        return Program(self._func, self._bound | kwargs, self._automatic)

    def trace(self, *args: Any, **kwargs: Any) -> Trace:
        """What the program would call, found by running it without a model.

        Every call answers with its own name in braces, or with some text that fits what it is bound
        to; arguments that are not given are their names in braces. The function's other effects are
        real.
        """
        return trace(self._func, self._bound | kwargs, args)

    def draw(self, *args: Any, **kwargs: Any) -> None:
        """Print the program's calls as trace() finds them."""
        print(self.trace(*args, **kwargs))

    def compile(self, *args: Any, **kwargs: Any) -> Compiled:
        """The program as a graph of calls.

        Arguments that are given here, and defaults, are folded in; those that are left out, or
        given as `placeholder`, are brought by each run as texts. The function runs twice for this,
        without a model; its other effects are real, and are not repeated by the compiled program.
        Raises DynamicProgram, naming the line, where what the function does depends on a value that
        only a run has.
        """
        return Compiled(compile_graph(self._func, args, self._bound | kwargs))

    def warm(self, *args: Any, backend: Backend | EngineLink | None = None, **kwargs: Any) -> int:
        """Have the backend's cache hold what all runs' first prompts begin with; its tokens.

        The beginning is found as compile() finds it, also of a program that cannot be compiled.
        """
        return warm_prefix(trace_steps(self._func, args, self._bound | kwargs).graph, backend)

    def _way(self, opener: Opener, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Way:
        found = None if self._automatic is None else self._automatic.form(args, kwargs)
        return Way(self._func) if found is None else found[0].way_with(opener, found[1])


@overload
def function(func: Callable[..., Any]) -> Program: ...


@overload
def function(
    func: None = None, *, compile: bool = False
) -> Callable[[Callable[..., Any]], Program]: ...


def function(
    func: Callable[..., Any] | None = None, *, compile: bool = False
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Make a program of a function; @function and @function() are the same.

    compile: runs use compiled forms of the program, where it has them. Texts are left open in a
    form, other arguments folded in; the first run with such others finds the form, for which the
    function runs twice without a model. So it must have no other effects, and always do the same.
    """

    def make(func: Callable[..., Any]) -> Program:
        return Program(func, None, Automatic(func, inspect.signature(func)) if compile else None)

    return make if func is None else make(func)
