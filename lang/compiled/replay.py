"""Running a graph: each branch goes on as soon as what it uses is there.

Owns: the order in which steps are given to the branches of a run, and the values that steps wait
for. Must not know: how a call is made, where it is made.

Steps become the operations that the program's function would have appended, on branches of the
same kind; what differs is only who waits for whom.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from radixserve.lang.branch import Branch
from radixserve.lang.compiled.graph import (
    Doing,
    Fork,
    Graph,
    Join,
    Made,
    Pick,
    SetTo,
    WholeText,
    Write,
)
from radixserve.lang.compiled.values import Template, Use, Value
from radixserve.lang.errors import GraphError, MisusedValue, ProgramError
from radixserve.lang.ir import Assign, Gen, Note, Op, ScopeEnd, Select, Text, Thoughts
from radixserve.lang.run import Run
from radixserve.lang.waiting import Waker

T = TypeVar("T")
AT_ONCE = 64  # steps of a branch before others have their turn
WORK = 256
_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Noted:
    value: Any
    meta: Any = None


class _Place:
    """What one step has made, or why it has not; steps of other branches wait for it."""

    def __init__(self) -> None:
        self._outcome: Noted | BaseException | None = None
        self._wakers: list[Waker] = []

    def kept(self, value: Any, meta: Any) -> None:
        self._set(Noted(value, meta))

    def lost(self, error: BaseException) -> None:
        self._set(error)

    async def value(self) -> Noted:
        """Raises why there is nothing."""
        outcome = await self.outcome()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def outcome(self) -> Noted | BaseException:
        if self._outcome is None:
            waker = Waker()
            self._wakers.append(waker)
            while self._outcome is None:
                await waker.wait()
        return self._outcome

    def _set(self, outcome: Noted | BaseException) -> None:
        if self._outcome is None:
            self._outcome = outcome
        for waker in self._wakers:
            waker.wake()


class Replay:
    """One run of a graph. arguments: by name, for every parameter.

    max_text: characters that texts of values may come to in all; None: any number. Then the work of
    appending is bounded, too: each append costs the length of the text.
    """

    def __init__(
        self,
        graph: Graph,
        arguments: Mapping[str, Any],
        run: Run,
        *,
        max_text: int | None = None,
    ) -> None:
        self._graph = graph
        self.arguments = arguments
        self._run = run
        self._left = max_text
        self._work_left = None if max_text is None else WORK * max_text
        self._lengths = {0: 0}
        self._places = {number: _Place() for number in graph.noted}
        self._walks: set[asyncio.Task[None]] = set()

    async def go(self, root: Branch) -> Any:
        """Everything, on the running loop; what the program returns, None where a branch failed."""
        try:
            await self._walk(0, root)
            while self._walks:
                await asyncio.wait(set(self._walks))
            await root.asettle()
        finally:
            for walk in self._walks:
                walk.cancel()
            await asyncio.gather(*self._walks, return_exceptions=True)
        if root.failure is not None:
            return None
        return await self._value(self._graph.returns)

    def go_inline(self, root: Branch) -> Any:
        """go() where every call is answered at once, in the order of the steps: nothing waits."""
        branches = {0: root}
        for number, step in enumerate(self._graph.steps):
            branch = branches.get(step.on)
            if branch is None:
                continue  # its fork was not reached
            try:
                _finished(self._step(number, branch, branches))
            except BaseException as error:
                # As in _walk().
                self._stop(step.on, number, branch, error)
                branches = {on: each for on, each in branches.items() if each is not branch}
        return None if root.failure is not None else _finished(self._value(self._graph.returns))

    async def _walk(self, number: int, branch: Branch) -> None:
        """The steps of one branch; what stops it is the failure of that branch."""
        steps = self._graph.branches[number]
        done = 0
        try:
            for each in steps:
                forked: dict[int, Branch] = {}
                await self._step(each, branch, forked)
                done += 1
                if done % AT_ONCE == 0:
                    await asyncio.sleep(0)
                for child, begun in forked.items():
                    self._spawn(child, begun)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # The program's border, as where a function raises: kept as the branch's failure.
            if done < len(steps):
                self._stop(number, steps[done], branch, error)

    def _stop(self, on: int, number: int, branch: Branch, error: BaseException) -> None:
        """Step `number` of branch `on` cannot be done, nor what comes behind it."""
        if branch.failure is None:
            branch.fail(error)
        self._abandon([each for each in self._graph.branches[on] if each >= number], error)

    async def _step(self, number: int, branch: Branch, forked: dict[int, Branch]) -> None:
        """Give the step to its branch; `forked` takes the branches that begin here."""
        step = self._graph.steps[number]
        do = step.do
        match do:
            case Fork(children=children):
                self._lengths |= dict.fromkeys(children, self._lengths[step.on])
                forked |= zip(children, self._run.fork(branch, len(children)))
            case Join():
                await self._join(number, branch)
            case _:
                branch.submit(*await self._ops(step.on, do))
        if number in self._places:
            branch.submit(Note(_variable(do), self._places[number]))

    def _spawn(self, number: int, branch: Branch) -> None:
        if self._graph.branches[number]:
            walk = asyncio.create_task(self._walk(number, branch))
            self._walks.add(walk)
            walk.add_done_callback(self._walks.discard)

    async def _ops(self, on: int, do: Doing) -> tuple[Op, ...]:
        match do:
            case Write(text=text):
                made = await self._text(text)
                self._count(on, made)
                return (Text(made),)
            case Pick(name=name, choices=choices, method=method, timeout=timeout):
                texts = [await self._text(choice) for choice in choices]
                return (Select(name, tuple(texts), method, timeout),)
            case SetTo(name=name, value=value):
                return (Assign(name, await self._value(value)),)
            case WholeText() | Fork() | Join():
                return ()
            case _:
                return (do,)

    async def _join(self, number: int, branch: Branch) -> None:
        """As ForkGroup.join(): wait for all, raise the failure of the first, gather."""
        ended = [await self._places[last].outcome() for last in self._graph.awaited[number]]
        for each in ended:
            if isinstance(each, BaseException):
                raise each
        for name, made in self._graph.joined[number].items():
            noted = await self._gathered(made)
            branch.submit(Assign(name, noted.value, noted.meta))

    async def _gathered(self, made: Made | None) -> Noted:
        match made:
            case None:
                return Noted(None)
            case int():
                return await self._places[made].value()
        each = [await self._gathered(inner) for inner in made]
        metas = [noted.meta for noted in each]
        has_meta = any(meta is not None for meta in metas)
        return Noted([noted.value for noted in each], metas if has_meta else None)

    async def _text(self, text: Template) -> str:
        if text.constant is not None:
            return text.constant
        made = "".join([await self._piece(piece) for piece in text.pieces])
        if self._left is not None:
            self._left -= len(made)
            if self._left < 0:
                raise GraphError("/steps", "the texts of this program grow too long")
        return made

    def _count(self, on: int, text: str) -> None:
        self._lengths[on] += len(text)
        if self._work_left is not None:
            self._work_left -= self._lengths[on]
            if self._work_left < 0:
                raise GraphError("/steps", "this program appends too often to texts so long")

    async def _piece(self, piece: str | Use) -> str:
        if isinstance(piece, str):
            return piece
        value = await self._used(piece)
        if piece.is_formatted:
            return self._shown(piece, value)
        if not isinstance(value, str):
            raise MisusedValue(f"{self._what(piece)} stands for a text and is {value!r:.100}")
        return value

    def _shown(self, use: Use, value: Any) -> str:
        """As f-strings, str() and % write it alike."""
        shown = format(value)
        if isinstance(value, tuple) or (type(value) not in _PLAIN and shown != str(value)):
            raise MisusedValue(
                f"{self._what(use)} is {value!r:.100}, which f-strings, str() and % may write "
                f"differently"
            )
        return shown

    async def _used(self, use: Use) -> Any:
        if isinstance(use.source, str):
            value = self.arguments[use.source]
        else:
            value = (await self._places[use.source].value()).value
        if use.item is None:
            return _part_of(value, use)
        if not isinstance(value, list) or use.item >= len(value):
            raise MisusedValue(f"{self._what(use)} has no item {use.item}: {value!r:.100}")
        return _part_of(value[use.item], use)

    def _what(self, use: Use) -> str:
        if isinstance(use.source, str):
            return f"argument {use.source!r}"
        return f"s[{_variable(self._graph.steps[use.source].do)!r}]"

    async def _value(self, value: Value) -> Any:
        match value:
            case Use():
                return await self._used(value)
            case Template():
                return await self._text(value)
            case list():
                return [await self._value(each) for each in value]
            case tuple():
                return tuple([await self._value(each) for each in value])
            case dict():
                return {name: await self._value(each) for name, each in value.items()}
            case _:
                return value

    def _abandon(self, steps: Iterable[int], error: BaseException) -> None:
        """Those who wait for these steps, or for what their forks would have done, wait no more."""
        for number in steps:
            if number in self._places:
                self._places[number].lost(error)
            do = self._graph.steps[number].do
            if isinstance(do, Fork):
                for child in do.children:
                    self._abandon(self._graph.branches[child], error)


def _finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    work.close()
    raise ProgramError("a step waits for what nobody will do")


def _part_of(value: Any, use: Use) -> Any:
    return getattr(value, use.part) if use.part else value


def _variable(do: Doing) -> str | None:
    match do:
        case Gen(name=name) | Pick(name=name):
            return name
        case ScopeEnd(name=name) | SetTo(name=name) | Thoughts(name=name):
            return name
        case _:
            return None


__all__ = ["Noted", "Replay"]
