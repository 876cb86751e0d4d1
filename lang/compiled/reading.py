"""The JSON form of a graph, version 1: reading it strictly, also where it comes from anyone.

Owns: what is a graph and what is none; errors name the JSON pointer. fields.py reads what stands in
a step. Must not know: how a graph is run, backends.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from radixserve.lang.choices import METHODS
from radixserve.lang.compiled import fields
from radixserve.lang.compiled.coding import VERSION
from radixserve.lang.compiled.fields import JSON, fail
from radixserve.lang.compiled.graph import (
    Doing,
    Fork,
    Graph,
    Join,
    Pick,
    SetTo,
    Step,
    WholeText,
    Write,
)
from radixserve.lang.compiled.values import Use, uses
from radixserve.lang.errors import ProgramError
from radixserve.lang.ir import (
    ROLES,
    Border,
    Declare,
    Gen,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    Text,
    Thoughts,
)
from radixserve.lang.roles import Roles
from radixserve.lang.toolkit import Calling


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits:
    """The most that a graph may have; None for any number.

    What forks copy and joins gather may come to COPIES times the steps, in steps and variables.
    """

    steps: int | None = None
    calls: int | None = None
    branches: int | None = None


ANY_SIZE = GraphLimits()
COPIES = 50
MAX_TOOLS_TEXT = 65_536  # characters of the tools of one step, where there are limits


def read_graph(data: object, at: str = "", limits: GraphLimits = ANY_SIZE) -> Graph:
    """The graph of JSON values. at: pointer to `data` itself. Raises GraphError."""
    given = fields.obj(data, at, ("radixserve_program", "steps"), ("name", "parameters", "returns"))
    version = given["radixserve_program"]
    if version != VERSION or type(version) is not int:
        fail(f"{at}/radixserve_program", f"this is version {VERSION}, not {version!r:.40}")
    name = fields.name(given.get("name", "program"), f"{at}/name")
    parameters = tuple(
        fields.identifier(each, f"{at}/parameters/{i}")
        for i, each in enumerate(fields.array(given.get("parameters", []), f"{at}/parameters"))
    )
    if len(set(parameters)) < len(parameters):
        fail(f"{at}/parameters", "a name stands there twice")
    listed = fields.array(given["steps"], f"{at}/steps")
    if limits.steps is not None and len(listed) > limits.steps:
        fail(f"{at}/steps", f"{len(listed)} steps; at most {limits.steps} are taken")
    reader = _Steps(parameters, limits)
    for i, each in enumerate(listed):
        reader.read(each, f"{at}/steps/{i}")
    returns = fields.value(given.get("returns"), f"{at}/returns")
    reader.check_uses(returns, f"{at}/returns")
    return Graph(name, parameters, tuple(reader.steps), returns)


@dataclass(slots=True)
class _Branch:
    """parent: of a child of a fork. scopes: those that are open. size: steps, those before its fork
    included. names: variables set since then.
    """

    parent: int | None
    roles: Roles
    size: int = 0
    scopes: int = 0
    names: set[str] = field(default_factory=set)


class _Steps:
    """Steps, each checked against those before it."""

    def __init__(self, parameters: tuple[str, ...], limits: GraphLimits) -> None:
        self.steps: list[Step] = []
        self._parameters = frozenset(parameters)
        self._limits = limits
        self._branches = [_Branch(None, Roles())]
        self._calls = 0
        self._copied = 0

    def read(self, data: object, at: str) -> None:
        kind = data.get("do") if isinstance(data, dict) else None
        if not isinstance(kind, str) or kind not in _KINDS:
            fields.obj(data, at, ("do",), None)
            fail(f"{at}/do", f"a step is one of {', '.join(_KINDS)}, not {kind!r:.60}")
        needed, optional, make = _KINDS[kind]
        given = fields.obj(data, at, ("do", *needed), ("on", *optional))
        on = fields.whole(given.get("on", 0), f"{at}/on")
        if not on < len(self._branches):
            fail(f"{at}/on", f"branch {on} has not begun: {len(self._branches)} have")
        do = make(given, at)
        self._check(do, on, at)
        self.steps.append(Step(on, do))

    def check_uses(self, value: Any, at: str) -> None:
        """Raise where something used is not there."""
        for use in uses(value):
            if isinstance(use.source, str):
                if use.source not in self._parameters:
                    fail(at, f"no parameter is called {use.source!r:.60}")
            elif not self._makes_value(use):
                fail(at, f"step {use.source} is no earlier step that makes a value")
            if use.part and not self._makes_turn(use):
                fail(at, f"{use.part} is a part of a gen's turn that may call tools")

    def _makes_value(self, use: Use) -> bool:
        assert isinstance(use.source, int)
        if use.source >= len(self.steps):
            return False
        match self.steps[use.source].do:
            case Gen(name=str()) | Pick(name=str()) | ScopeEnd() | Thoughts() | WholeText():
                return True
            case _:
                return False

    def _makes_turn(self, use: Use) -> bool:
        match use.source:
            case int() as number:
                return getattr(self.steps[number].do, "tools", None) is not None
            case _:
                return False

    def _check(self, do: Doing, on: int, at: str) -> None:
        branch = self._branches[on]
        branch.size += 1
        if isinstance(do, Gen | Pick | ScopeEnd | SetTo | Thoughts) and do.name is not None:
            branch.names.add(do.name)
        for name in ("text", "choices", "value"):
            self.check_uses(getattr(do, name, None), f"{at}/{name}")
        match do:
            case ScopeBegin():
                branch.scopes += 1
            case ScopeEnd():
                branch.scopes -= 1
                if branch.scopes < 0:
                    fail(at, "no scope of this branch is open")
            case Gen() | Pick():
                self._count_call(at)
                self._count_tools(getattr(do, "tools", None), at)
            case Declare(tools=tools):
                self._count_tools(Calling(tools), at)
            case Fork(children=children):
                self._fork(children, on, at)
            case Join(children=children):
                self._join(children, on, at)
            case _:
                pass
        self._step_roles(branch, do, at)

    def _count_call(self, at: str) -> None:
        self._calls += 1
        if self._limits.calls is not None and self._calls > self._limits.calls:
            fail(at, f"this is call {self._calls}; at most {self._limits.calls} are taken")

    def _count_tools(self, calling: Calling | None, at: str) -> None:
        """Each call tells all tools of its conversation."""
        if self._limits.steps is None or calling is None:
            return
        size = sum(len(json.dumps(tool.spec)) for tool in calling.tools or ())
        if size > MAX_TOOLS_TEXT:
            fail(f"{at}/tools", f"{size} characters; at most {MAX_TOOLS_TEXT} are taken")

    def _fork(self, children: tuple[int, ...], on: int, at: str) -> None:
        first = len(self._branches)
        if children != tuple(range(first, first + len(children))):
            fail(f"{at}/children", f"the branches of a fork are numbered on, here from {first}")
        most = self._limits.branches
        if most is not None and first + len(children) > most:
            fail(f"{at}/children", f"more than {most} branches")
        branch = self._branches[on]
        self._copy(len(children) * branch.size, at)
        self._branches += [_Branch(on, branch.roles, branch.size) for _ in children]

    def _join(self, children: tuple[int, ...], on: int, at: str) -> None:
        for i, child in enumerate(children):
            if child >= len(self._branches) or self._branches[child].parent != on:
                fail(f"{at}/children/{i}", f"branch {child} is no child of branch {on}")
        if len(set(children)) < len(children):
            fail(f"{at}/children", "a branch stands there twice")
        names = set().union(*(self._branches[child].names for child in children))
        self._copy(len(children) * (1 + len(names)), at)
        self._branches[on].names |= names

    def _copy(self, count: int, at: str) -> None:
        self._copied += count
        if self._limits.steps is not None and self._copied > COPIES * self._limits.steps:
            fail(at, "the forks and joins of this program copy too much")

    @staticmethod
    def _step_roles(branch: _Branch, do: Doing, at: str) -> None:
        try:
            match do:
                case Write(text=text):
                    branch.roles, _ = branch.roles.then(Text("text" if text.pieces else ""))
                case Gen() | RoleBegin() | RoleEnd():
                    branch.roles, _ = branch.roles.then(do)
                case _:
                    pass
        except ProgramError as error:
            fail(f"{at}/role", str(error))


def _text(given: JSON, at: str) -> Doing:
    return Write(fields.text(given["text"], f"{at}/text"))


def _gen(given: JSON, at: str) -> Doing:
    return Gen(
        fields.variable(given.get("name"), f"{at}/name"),
        fields.sampling(given.get("sampling", {}), f"{at}/sampling"),
        fields.timeout(given.get("timeout"), f"{at}/timeout"),
        tools=fields.calling(given, at),
    )


def _tools(given: JSON, at: str) -> Doing:
    return Declare(fields.tools(given["tools"], f"{at}/tools"))


def _pick(given: JSON, at: str) -> Doing:
    listed = fields.array(given["choices"], f"{at}/choices")
    if not listed:
        fail(f"{at}/choices", "there is nothing to select")
    method = given.get("method", "token_length_normalized")
    if not isinstance(method, str) or method not in METHODS:
        fail(f"{at}/method", f"a method is one of {', '.join(METHODS)}, not {method!r:.60}")
    return Pick(
        fields.variable(given.get("name"), f"{at}/name"),
        tuple(fields.text(each, f"{at}/choices/{i}") for i, each in enumerate(listed)),
        METHODS[method],
        fields.timeout(given.get("timeout"), f"{at}/timeout"),
    )


def _role(given: JSON, at: str) -> str:
    role = given["role"]
    if not isinstance(role, str) or role not in ROLES:
        fail(f"{at}/role", f"a role is one of {', '.join(ROLES)}, not {role!r:.60}")
    return role


def _children(given: JSON, at: str) -> tuple[int, ...]:
    listed = fields.array(given["children"], f"{at}/children")
    return tuple(fields.whole(each, f"{at}/children/{i}") for i, each in enumerate(listed))


def _set(given: JSON, at: str) -> Doing:
    name = fields.name(given["name"], f"{at}/name")
    return SetTo(name, fields.value(given["value"], f"{at}/value"))


def _scope_end(given: JSON, at: str) -> Doing:
    return ScopeEnd(fields.name(given["name"], f"{at}/name"))


def _reasoning(given: JSON, at: str) -> Doing:
    return Thoughts(fields.name(given["name"], f"{at}/name"), fields.name(given["of"], f"{at}/of"))


Make = Callable[[JSON, str], Doing]
# Fields that must be there, those that may.
_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], Make]] = {
    "text": (("text",), (), _text),
    "tools": (("tools",), (), _tools),
    "gen": ((), ("name", "sampling", "timeout", *fields.OF_TOOLS), _gen),
    "select": (("choices",), ("name", "method", "timeout"), _pick),
    "role_begin": (("role",), (), lambda given, at: RoleBegin(_role(given, at))),
    "role_end": (("role",), (), lambda given, at: RoleEnd(_role(given, at))),
    "scope_begin": ((), (), lambda _, __: ScopeBegin()),
    "scope_end": (("name",), (), _scope_end),
    "reasoning": (("name", "of"), (), _reasoning),
    "border": ((), (), lambda _, __: Border()),
    "set": (("name", "value"), (), _set),
    "fork": (("children",), (), lambda given, at: Fork(_children(given, at))),
    "join": (("children",), (), lambda given, at: Join(_children(given, at))),
    "whole_text": ((), (), lambda _, __: WholeText()),
}  # fmt: skip
