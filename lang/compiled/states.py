"""The states that a program is given while it is traced.

Owns: turning what a program does with a state into steps. Must not know: how values are traced,
what becomes of the steps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NoReturn, Self

from radixserve.lang.async_state import AsyncForkGroup, AsyncState, Pending
from radixserve.lang.compiled.coding import calling_to_json
from radixserve.lang.compiled.following import Following
from radixserve.lang.compiled.graph import Doing, Fork, Join, Pick, SetTo, WholeText, Write
from radixserve.lang.compiled.traced import Recorder, TracedValue, joined
from radixserve.lang.compiled.values import Template
from radixserve.lang.ir import (
    Assign,
    Border,
    Declare,
    Gen,
    Op,
    RoleBegin,
    ScopeEnd,
    Select,
    Text,
    Thoughts,
)
from radixserve.lang.roles import Roles
from radixserve.lang.sampling import Sampling
from radixserve.lang.state import ForkGroup, OpenState, ProgramState, check_mode

_BORDER = Border()


class Track:
    """What is known of one branch: its number, its variables, where it stands in its roles.

    own: the variables set since the branch began.
    """

    def __init__(self, recorder: Recorder, number: int, parent: Track | None = None) -> None:
        self.recorder = recorder
        self.number = number
        self.variables: dict[str, Any] = dict(parent.variables) if parent else {}
        self.own: dict[str, Any] = {}
        self._roles: Roles = parent._roles if parent else Roles()

    def take(self, op: Any) -> None:
        """One operation that the program appends."""
        fits = Text("text") if type(op) is Template else op
        self._roles, _ = self._roles.then(fits)
        match op:
            case Template():
                self._step(Write(op))
            case Gen():
                self._gen(op)
            case Select():
                self._select(op)
            case Assign(name=name, value=value):
                self.recorder.refuse_marks(name, "the name of a variable")
                self._step(SetTo(name, self.recorder.quote(value, f"s[{name!r}]")))
                self._set(name, value)
            case ScopeEnd(name=name):
                self.recorder.refuse_marks(name, "the name of a variable")
                self._set(name, self._made(self._step(op), name))
            case Declare(tools=tools):
                specs = [tool.spec for tool in tools]
                self.recorder.refuse_marks(specs, "a tool")
                self._step(op)
            case RoleBegin(call_id=call_id) if call_id:
                self.recorder.refuse("the result of a call is told, which only a run has")
            case Thoughts(name=name, of=of):
                outputs = self.variables[of]
                size = len(outputs) if type(outputs) is list else None
                self._set(name, self._made(self._step(op), name, size))
            case _:
                self._step(op)

    def read(self, name: str) -> Any:
        """A variable's value, or what stands for it. Raises KeyError."""
        value = self.variables[name]
        self.recorder.read(f"s[{name!r}]")
        return value

    def text(self) -> TracedValue:
        self.recorder.read("the text")
        return self.recorder.value(self._step(WholeText()), "the text")

    def fork(self, size: int) -> list[Track]:
        first = self.recorder.branches
        self.recorder.branches += size
        numbers = tuple(range(first, first + size))
        self._step(Fork(numbers))
        return [Track(self.recorder, number, self) for number in numbers]

    def join(self, children: list[Track]) -> None:
        self.recorder.read("a join")
        self._step(Join(tuple(child.number for child in children)))
        for name in dict.fromkeys(name for child in children for name in child.own):
            self._set(name, [child.own.get(name) for child in children])

    def _gen(self, op: Gen) -> None:
        said = [getattr(op.sampling, name) for name in Sampling.__slots__]
        self.recorder.refuse_marks(op.name, "the name of a gen")
        if op.tools is not None:
            said.append(calling_to_json(op.tools))
        self.recorder.refuse_marks(said, f"an argument of gen({op.name!r})")
        number = self._step(op)
        if op.name is None:
            return
        size = op.sampling.n or 1
        self._set(op.name, self._made(number, op.name, None if size == 1 else size))

    def _select(self, op: Select) -> None:
        self.recorder.refuse_marks(op.name, "the name of a select")
        choices = tuple(joined(self.recorder, [choice]) for choice in op.choices)
        number = self._step(Pick(op.name, choices, op.method, op.timeout))
        if op.name is not None:
            self._set(op.name, self._made(number, op.name))

    def _made(self, number: int, name: str, size: int | None = None) -> Any:
        """What stands for the value of step `number`; size: of the list that it is."""
        label = f"s[{name!r}]"
        if size is None:
            return self.recorder.value(number, label)
        return [self.recorder.value(number, label, i) for i in range(size)]

    def _set(self, name: str, value: Any) -> None:
        self.recorder.keep(value, f"s[{name!r}]")
        self.variables[name] = self.own[name] = value

    def _step(self, do: Doing) -> int:
        return self.recorder.take(self.number, do)


class _Traced(OpenState):
    """What plain and async states have in common."""

    def __init__(self, track: Track) -> None:
        self._track = track
        self._outside = False

    def _submit(self, *ops: Op) -> None:
        for op in _merged(self._track.recorder, ops):
            self._track.take(op)

    def _called(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return Following(self._track.recorder).must(func)

    def cancel(self) -> NoReturn:
        self._refuse("cancel()")

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        del return_meta_data
        self._track.recorder.read_as_stream(var_name)
        yield

    def _refuse(self, what: str) -> NoReturn:
        self._track.recorder.refuse(f"{what} of a state depends on how the run goes")

    def _forked(self, size: int) -> list[Track]:
        if size < 0:
            raise ValueError(f"fork(size) must be 0 or more, not {size}")
        return self._track.fork(size)


class TracedState(_Traced, ProgramState):
    """What a plain function is given."""

    def __contains__(self, name: str) -> bool:
        self._track.recorder.read(f"whether there is s[{name!r}]")
        return name in self._track.variables

    def get_var(self, name: str) -> Any:
        return self._track.read(name)

    def text(self) -> Any:
        return self._track.text()

    def fork(self, size: int = 1, position_ids_offset: Any = None) -> TracedForks:
        if position_ids_offset is not None:
            raise NotImplementedError("fork(position_ids_offset=..) is not implemented")
        return TracedForks([TracedState(each) for each in self._forked(size)], self)

    def copy(self) -> TracedCopy:  # type: ignore[override]
        [child] = self._forked(1)
        return TracedCopy(child, self)

    def sync(self) -> None:
        self._track.recorder.read("sync()")
        self._submit(_BORDER)

    def get_meta_info(self, name: str) -> NoReturn:
        self._refuse(f"get_meta_info({name!r})")

    def messages(self) -> NoReturn:
        self._refuse("messages()")

    def error(self) -> NoReturn:
        self._refuse("error()")

    def explain(self) -> NoReturn:
        self._refuse("explain()")

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        del var_name
        self._refuse("text_iter()")


class TracedAsyncState(_Traced, AsyncState):
    """What an `async def` function is given; nothing that it awaits takes time."""

    async def get_var(self, name: str) -> Any:
        return self._track.read(name)

    def __getitem__(self, name: str) -> Pending:
        return Pending(name, lambda: self.get_var(name))

    async def has(self, name: str) -> bool:
        self._track.recorder.read(f"whether there is s[{name!r}]")
        return name in self._track.variables

    async def text(self) -> Any:
        return self._track.text()

    def fork(self, size: int = 1) -> TracedAsyncForks:
        return TracedAsyncForks([TracedAsyncState(each) for each in self._forked(size)], self)

    def copy(self) -> TracedAsyncCopy:  # type: ignore[override]
        [child] = self._forked(1)
        return TracedAsyncCopy(child, self)

    async def sync(self) -> None:
        self._track.recorder.read("sync()")
        self._submit(_BORDER)

    async def get_meta_info(self, name: str) -> NoReturn:
        self._refuse(f"get_meta_info({name!r})")

    async def messages(self) -> NoReturn:
        self._refuse("messages()")

    async def error(self) -> NoReturn:
        self._refuse("error()")

    async def explain(self) -> NoReturn:
        self._refuse("explain()")


class TracedForks(ForkGroup):
    def join(self, mode: str = "gather_variable") -> None:
        check_mode(mode)
        _join(self._parent, self._states)


class TracedAsyncForks(AsyncForkGroup):
    async def join(self, mode: str = "gather_variable") -> None:
        check_mode(mode)
        _join(self._parent, self._states)


class TracedCopy(TracedState):
    def __init__(self, track: Track, parent: TracedState) -> None:
        super().__init__(track)
        self._parent = parent

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            _join(self._parent, [self])


class TracedAsyncCopy(TracedAsyncState):
    def __init__(self, track: Track, parent: TracedAsyncState) -> None:
        super().__init__(track)
        self._parent = parent

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        if error[0] is None:
            _join(self._parent, [self])


def _join(parent: Any, children: list[Any]) -> None:
    parent._track.join([child._track for child in children])


def _merged(recorder: Recorder, ops: tuple[Any, ...]) -> Iterator[Any]:
    """The operations, where texts with values in them are templates with what stands beside."""
    run: list[Any] = []
    for op in (*ops, None):
        if type(op) is TracedValue:
            run.append(op)
            continue
        if type(op) is Text:
            run.append(op.value)
            continue
        if run:
            made = joined(recorder, run)
            run = []
            if made.pieces:
                yield made
        if op is not None:
            yield op
