"""The graph of a program's calls.

Owns: the steps that a program comes to, in the order of its lines, and what follows from them: the
branches, what a join gathers, which calls wait for which, the constant prefix. Must not know: how
a graph is found, its JSON form, how it is run.

A step stands on a branch; the steps of one branch follow each other, those of different branches
only wait where a step uses what another has made, at a fork or at a join. Branch 0 is the
program's own state; a fork makes the next numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from radixserve.lang.choices import ChoicesMethod
from radixserve.lang.compiled.values import Template, Use, Value, uses
from radixserve.lang.history import MARKS
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
from radixserve.lang.prompt import Part, Prompt
from radixserve.lang.toolkit import Calling, Tool


@dataclass(frozen=True, slots=True)
class Write:
    text: Template


@dataclass(frozen=True, slots=True)
class Pick:
    """A select whose choices may hold values."""

    name: str | None
    choices: tuple[Template, ...]
    method: ChoicesMethod
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class SetTo:
    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class Fork:
    """children: numbers of branches, which begin here."""

    children: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """Wait for what stands of the children before this step, gather their variables."""

    children: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WholeText:
    """The whole text of the branch so far is a value."""


Doing = (
    Write | Gen | Pick | RoleBegin | RoleEnd | ScopeBegin | ScopeEnd | Border | SetTo | Fork | Join
    | WholeText | Thoughts | Declare
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    on: int
    do: Doing


# What a variable of a joined child comes to: the step that made it, or a list of such for a
# variable that the child got by a join of its own.
Made = int | list["Made | None"]


@dataclass(frozen=True)
class Graph:
    """parameters: names of the arguments that a run takes. returns: of the program's function."""

    name: str
    parameters: tuple[str, ...]
    steps: tuple[Step, ...]
    returns: Value = None

    @cached_property
    def branches(self) -> tuple[tuple[int, ...], ...]:
        """For each branch the numbers of its steps."""
        found: dict[int, list[int]] = {0: []}
        for number, step in enumerate(self.steps):
            found[step.on].append(number)
            if isinstance(step.do, Fork):
                found |= {child: [] for child in step.do.children}
        return tuple(tuple(found[branch]) for branch in range(len(found)))

    @cached_property
    def joined(self) -> dict[int, dict[str, list[Made | None]]]:
        """For each Join the variables that it gives its branch."""
        own: dict[int, dict[str, Made]] = {0: {}}
        found: dict[int, dict[str, list[Made | None]]] = {}
        for number, step in enumerate(self.steps):
            match step.do:
                case Gen(name=str() as name) | Pick(name=str() as name):
                    own[step.on][name] = number
                case ScopeEnd(name=name) | SetTo(name=name) | Thoughts(name=name):
                    own[step.on][name] = number
                case Fork(children=children):
                    own |= {child: {} for child in children}
                case Join(children=children):
                    names = dict.fromkeys(name for child in children for name in own[child])
                    found[number] = {
                        name: [own[child].get(name) for child in children] for name in names
                    }
                    own[step.on] |= found[number]
                case _:
                    pass
        return found

    @cached_property
    def awaited(self) -> dict[int, tuple[int, ...]]:
        """For each Join the last step of each child before it, where there is one."""
        last: dict[int, int] = {}
        found: dict[int, tuple[int, ...]] = {}
        for number, step in enumerate(self.steps):
            if isinstance(step.do, Join):
                found[number] = tuple(last[child] for child in step.do.children if child in last)
            last[step.on] = number
        return found

    @cached_property
    def noted(self) -> frozenset[int]:
        """Steps that others wait for, or use."""
        found = {n for numbers in self.awaited.values() for n in numbers}
        for variables in self.joined.values():
            for made in variables.values():
                found |= set(_leaves(made))
        every = [self.returns, *(_value_of(step.do) for step in self.steps)]
        found |= {use.source for use in uses(every) if isinstance(use.source, int)}
        return frozenset(found)

    @property
    def calls(self) -> tuple[int, ...]:
        """The steps that call the model."""
        return tuple(n for n, step in enumerate(self.steps) if isinstance(step.do, Gen | Pick))

    @cached_property
    def needs(self) -> dict[int, tuple[int, ...]]:
        """For each call the calls that must have ended before it begins."""
        direct: dict[int, set[int]] = {}
        line: dict[int, int] = {}  # the step that a branch last came to
        for number, step in enumerate(self.steps):
            before = {line[step.on]} if step.on in line else set()
            before |= {
                use.source for use in uses(_value_of(step.do)) if isinstance(use.source, int)
            }
            before |= set(self.awaited.get(number, ()))
            direct[number] = before
            line[step.on] = number
            if isinstance(step.do, Fork):
                line |= dict.fromkeys(step.do.children, number)
        is_call = set(self.calls)
        reach: dict[int, frozenset[int]] = {}
        for number in range(len(self.steps)):  # steps only need earlier ones
            found: set[int] = set()
            for each in direct[number]:
                found |= {each} if each in is_call else reach[each]
            reach[number] = frozenset(found)
        return {number: tuple(sorted(reach[number])) for number in self.calls}

    @property
    def waves(self) -> list[list[int]]:
        """The calls, in groups that may run side by side, each after the one before it."""
        depth: dict[int, int] = {}
        for number in self.calls:
            depth[number] = 1 + max((depth[each] for each in self.needs[number]), default=-1)
        found: list[list[int]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
        for number, level in depth.items():
            found[level].append(number)
        return found

    @property
    def prefix(self) -> list[Part]:
        """The parts that every run's first prompt begins with, whatever the arguments."""
        prompt = Prompt()
        if self.tools:
            prompt.tell([tool.spec for tool in self.tools])
        for kind, text in self._constant_beginning():
            match kind:
                case "open":
                    prompt.open_role(text)
                case "close":
                    prompt.close_role(text)
                case "border":
                    prompt.add_border()
                case _:
                    prompt.add_text(text)
        return prompt.parts()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Those that stand where the first prompt begins: declared, or those of the first call."""
        for number in self.branches[0]:
            match self.steps[number].do:
                case Declare(tools=tools):
                    return tools
                case Gen(tools=Calling(tools=(*_,) as tools)):
                    return tuple(tools)
                case Gen() | Pick():
                    break
                case _:
                    pass
        return ()

    @property
    def constant_prefix(self) -> str:
        """The same as text, with the marks of ProgramState.text()."""
        marks = {"close": "\n", "border": ""}
        return "".join(
            MARKS[text] if kind == "open" else marks.get(kind, text)
            for kind, text in self._constant_beginning()
        )

    def _constant_beginning(self) -> Iterator[tuple[str, str]]:
        for number in self.branches[0]:
            match self.steps[number].do:
                case Write(text=text):
                    yield "text", text.head
                    if text.constant is None:
                        return
                case RoleBegin(role=role):
                    yield "open", role
                case RoleEnd(role=role):
                    yield "close", role
                case Border() | Fork():
                    yield "border", ""
                case Gen() | Pick():
                    return
                case _:
                    pass


def _leaves(made: Made | None) -> Iterator[int]:
    match made:
        case int():
            yield made
        case list():
            for each in made:
                yield from _leaves(each)
        case None:
            return


def _value_of(do: Doing) -> Value:
    match do:
        case Write(text=text):
            return text
        case Pick(choices=choices):
            return choices
        case SetTo(value=value):
            return value
        case _:
            return None


def texts_need(graph: Graph) -> frozenset[int | str]:
    """Sources of values that stand in texts, where a reader of objects would be needed."""
    found = [
        step.do.text if isinstance(step.do, Write) else step.do.choices
        for step in graph.steps
        if isinstance(step.do, Write | Pick)
    ]
    return frozenset(use.source for use in uses(found))


__all__ = [
    "Doing",
    "Fork",
    "Graph",
    "Join",
    "Made",
    "Pick",
    "SetTo",
    "Step",
    "Template",
    "Use",
    "WholeText",
    "Write",
    "texts_need",
]
