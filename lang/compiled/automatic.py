"""Programs that are compiled by themselves: @function(compile=True).

Owns: the compiled forms of one program, and which arguments each has folded in. Must not know: how
a graph is found, how it is run.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

from radixserve.lang.compiled.program import Compiled
from radixserve.lang.compiled.tracing import compile_graph, placeholder
from radixserve.lang.errors import DynamicProgram

MAX_FORMS = 16  # a program that is run with more different constants is interpreted for the rest


class Automatic:
    """Texts are left open, everything else is folded in; a form is found once for each."""

    def __init__(self, func: Callable[..., Any], signature: inspect.Signature) -> None:
        self._func = func
        self._signature = signature
        self._lock = threading.Lock()
        self._forms: dict[str, Compiled | None] = {}

    def form(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Compiled, dict[str, str]] | None:
        """The compiled program for these arguments, and those that it leaves open.

        None where the program is dynamic, or an argument is no plain value.
        """
        bound = self._signature.bind(None, *args, **kwargs)
        named = {name: value for name, value in bound.arguments.items() if type(value) is str}
        rest = {name: value for name, value in bound.arguments.items() if name not in named}
        if not _is_plain(rest):
            return None
        key = repr((sorted(named), sorted(rest.items(), key=str)))
        with self._lock:
            if key not in self._forms and len(self._forms) < MAX_FORMS:
                bound.arguments |= dict.fromkeys(named, placeholder)
                self._forms[key] = self._compiled(bound)
            form = self._forms.get(key)
        return None if form is None else (form, named)

    def _compiled(self, bound: inspect.BoundArguments) -> Compiled | None:
        try:
            return Compiled(compile_graph(self._func, bound.args[1:], bound.kwargs))
        except DynamicProgram:
            return None


def _is_plain(value: Any) -> bool:
    """Whether repr() tells all of it."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(name) is str and _is_plain(each) for name, each in value.items())
    return value is None or type(value) in (bool, int, float, str)
