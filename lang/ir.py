"""What a program appends to its state: expressions, and the operations they are made of.

Owns: the shapes of expressions, and how strings and expressions are joined. An operation (Op) is
what an interpreter performs; Chain and Nested are only ways of writing several. Must not know:
how anything is run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, cast

from radixserve.lang.choices import ChoicesMethod
from radixserve.lang.sampling import Sampling
from radixserve.lang.toolkit import Calling, Tool

ROLES = ("system", "user", "assistant")


class Expr:
    """Anything that can be appended to a state, joined with + to strings and other expressions."""

    __slots__ = ()

    def __add__(self, other: str | Expr) -> Chain:
        return Chain((*items(self), *items(other)))

    def __radd__(self, other: str | Expr) -> Chain:
        return Chain((*items(other), *items(self)))


class Standin(Expr):
    """Stands for a text that a program has not got yet, while it is traced.

    It tells nobody another type, so isinstance() must not be asked of one.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Text(Expr):
    value: str


@dataclass(frozen=True, slots=True)
class Gen(Expr):
    """Let the model write. name: the variable that receives the text, or None.

    timeout: seconds that the call may take. read: makes the variable's value of the text. tools:
    what it may call; the value is then a Turn.
    """

    name: str | None
    sampling: Sampling
    timeout: float | None = None
    read: Callable[[str], Any] | None = None
    tools: Calling | None = None

    def __repr__(self) -> str:
        return f"gen({self.name!r})"


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """Let the model pick one of `choices` (at least one) by `method`. timeout: as in Gen."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesMethod
    timeout: float | None = None

    def __repr__(self) -> str:
        return f"select({self.name!r})"


@dataclass(frozen=True, slots=True)
class Declare(Expr):
    """The tools of the conversation, told where it begins."""

    tools: tuple[Tool, ...]


@dataclass(frozen=True, slots=True)
class RoleBegin(Expr):
    """call_id: of the call whose result a block of the role "tool" holds."""

    role: str
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class RoleEnd(Expr):
    role: str


@dataclass(frozen=True, slots=True)
class ScopeBegin(Expr):
    """The text from here to the matching ScopeEnd becomes the variable that ScopeEnd names."""


@dataclass(frozen=True, slots=True)
class ScopeEnd(Expr):
    name: str


@dataclass(frozen=True, slots=True)
class Assign(Expr):
    """Set a variable without touching the text. meta: its meta information, or None."""

    name: str
    value: Any
    meta: Any = None


@dataclass(frozen=True, slots=True)
class Thoughts(Expr):
    """Set variable `name` to the reasoning that was told apart from `of`, a variable of a gen."""

    name: str
    of: str


@dataclass(frozen=True, slots=True)
class Border(Expr):
    """End the current segment of text: what follows is tokenised on its own."""


class Told(Protocol):
    """Who is told what a variable is at one place of a program; one of the two, once."""

    def kept(self, value: Any, meta: Any) -> None: ...

    def lost(self, error: BaseException) -> None: ...


@dataclass(frozen=True, slots=True)
class Note(Expr):
    """Tell `told` the variable `name` and its meta information as they are here; without a name,
    the whole text. A branch that fails before tells why.
    """

    name: str | None
    told: Told


@dataclass(frozen=True, slots=True)
class Chain(Expr):
    """Operations and nested programs, one after another."""

    items: tuple[Op | Nested, ...]


@dataclass(frozen=True, slots=True)
class Nested(Expr):
    """Another program's body, to be run on the state that this is appended to."""

    name: str
    body: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> NoReturn:
        raise TypeError(
            f"{self.name}(..) without a state is an expression to append to one; "
            f"{self.name}.run(..) runs it by itself"
        )


Op = (
    Text | Gen | Select | RoleBegin | RoleEnd | ScopeBegin | ScopeEnd | Assign | Thoughts | Border
    | Note | Declare
)  # fmt: skip


def items(value: str | Expr) -> tuple[Op | Nested, ...]:
    """What appending `value` does, in order. Raises TypeError for what cannot be appended."""
    if issubclass(type(value), Standin):
        return cast("tuple[Op, ...]", (value,))  # only a state that traces is given one
    match value:
        case str():
            return (Text(value),)
        case Chain(items=each):
            return each
        case (
            Text() | Gen() | Select() | RoleBegin() | RoleEnd() | ScopeBegin() | ScopeEnd()
            | Assign() | Thoughts() | Border() | Note() | Declare() | Nested()
        ):  # fmt: skip
            return (value,)
        case _:
            raise TypeError(f"append a str or an expression, not {value!r}")


def is_text(value: object) -> bool:
    """Whether `value` may stand where a program writes a text."""
    return issubclass(type(value), str | Standin)


def variable(op: Op) -> str | None:
    """The variable that has a new value once `op` has been performed."""
    match op:
        case Gen(name=name) | Select(name=name):
            return name
        case ScopeEnd(name=name) | Assign(name=name) | Thoughts(name=name):
            return name
        case Text() | RoleBegin() | RoleEnd() | ScopeBegin() | Border() | Note() | Declare():
            return None
