"""A program's calls without a model: what f.trace() finds and f.draw() prints.

Owns: the run in which every call answers with its own name, and the drawing. Must not know:
threads, wire forms beyond the parts of a prompt.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radixserve.lang.asking import Settings
from radixserve.lang.backends.base import Body
from radixserve.lang.backends.mock import Mock
from radixserve.lang.backends.mock_calls import must_call, names_in
from radixserve.lang.calls import Call, Caller
from radixserve.lang.errors import BackendError
from radixserve.lang.history import MARKS, CallReport
from radixserve.lang.prompt import Part
from radixserve.lang.run import Run
from radixserve.lang.sampling import run_defaults
from radixserve.lang.work import Work

_WIDTH = 60
_MADE_UP = {"json_schema", "json_object", "regex", "choice"}


@dataclass(frozen=True, slots=True)
class TracedCall:
    """call, parent: places in the program. new_text: what it sends that its parent did not know.
    tools: names of those that it may call."""

    call: str
    parent: str
    kind: str
    name: str | None
    new_text: str
    choices: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """The calls of one way through a program, parents first."""

    program: str
    calls: Sequence[TracedCall]

    def __str__(self) -> str:
        return "\n".join([self.program, *self._lines("", "")])

    def _lines(self, parent: str, indent: str) -> Iterator[str]:
        children = [each for each in self.calls if each.parent == parent]
        for each in children:
            is_last = each is children[-1]
            head = indent + ("└─ " if is_last else "├─ ")
            below = indent + ("   " if is_last else "│  ")
            choices = f" of {list(each.choices)}" if each.choices else ""
            tools = f" may call {', '.join(each.tools)}" if each.tools else ""
            yield f"{head}{each.kind} {each.name or '-'}{choices}{tools}  [{each.call}]"
            if each.new_text:
                yield f"{below}  {_short(each.new_text)}"
            yield from self._lines(each.call, below)


def trace(func: Callable[..., Any], kwargs: Mapping[str, Any], args: tuple[Any, ...]) -> Trace:
    """Run `func` on a backend that knows no answer but the variable's name in braces."""
    given = inspect.signature(func).bind_partial(None, *args, **kwargs).arguments
    missing = {
        name: f"{{{name}}}"
        for name, parameter in list(inspect.signature(func).parameters.items())[1:]
        if name not in given
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    echo, settings = _Echo(), Settings(run_defaults({}))

    def open_run(on_loop: bool) -> Run:
        return Run(echo, settings, use_thread=False, on_loop=on_loop, caller=_NamingCaller)

    reports = Work(func, args, {**missing, **kwargs}, open_run).run().explain().calls
    bodies = {body["program"]["call"]: body for body in echo.calls}
    return Trace(func.__name__, [_traced(each, bodies[each.call]) for each in reports])


class _Echo(Mock):
    """Answers {name}, the variable that the answer is for; what is bound with some fitting text."""

    def __init__(self) -> None:
        self.answer = ""
        super().__init__(self._named, logprob=lambda *_: -1.0, is_instant=True)

    def _refuse_unknown(self, body: Body) -> None:
        """Nothing: it stands for backends that may know."""

    def _named(self, _: str, body: Body) -> str:
        if (
            must_call(body) or _MADE_UP & body["sampling_params"].keys()
        ):  # the program will read it as what it asked
            raise BackendError(500, "exhausted", "made up instead")
        return self.answer


class _NamingCaller(Caller):
    """Tells an _Echo whose turn it is; a trace makes one call at a time."""

    def _before(self, call: Call) -> None:
        super()._before(call)
        assert isinstance(self._backend, _Echo)
        self._backend.answer = f"{{{call.name or call.body['program']['call']}}}"


def _traced(report: CallReport, body: dict[str, Any]) -> TracedCall:
    kind = "select" if report.kind == "choose" else "gen"
    choices = tuple(body["input"][-1]["choices"]) if kind == "select" else ()
    text = "".join(_spelt(part) for part in body["input"])
    tools = tuple(names_in(body))
    return TracedCall(report.call, report.parent, kind, report.name, text, choices, tools)


def _spelt(part: Part) -> str:
    match part:
        case {"text": str() as text}:
            return text
        case {"role_open": str() as role}:
            return MARKS[role]
        case {"role_close": _}:
            return "\n"
        case _:
            return ""


def _short(text: str) -> str:
    line = repr(text)
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH // 2]} .. {line[-_WIDTH // 2 :]}"
