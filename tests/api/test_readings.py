"""Which constraint is read when: native/readings.py. Work is counted in steps, not by the clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from radixserve.errors import InvalidRequest
from radixserve.grammar import effort
from radixserve.native import readings
from radixserve.native.readings import FACTOR, FIRST, Readings
from radixserve.wire.params import Constraint

PIECE = 500


def takes(steps: int, name: str = "") -> Constraint:
    return Constraint(kind="regex", value=f"{steps} {name}")


class Turn(NamedTuple):
    constraint: Constraint
    is_whole: bool
    steps: int
    thread: str


class Reader:
    """Its work takes the steps that a constraint names. gate: nothing is read before it opens.
    turns: in the order in which they ended."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.turns: list[Turn] = []

    def work(self, constraint: Constraint) -> Constraint:
        assert self.gate.wait(20)
        wanted, spent = int(constraint.value.split()[0]), 0
        try:
            while spent < wanted:
                effort.spend(PIECE)
                spent += PIECE
        finally:
            thread = threading.current_thread().name
            self.turns.append(Turn(constraint, spent >= wanted, spent, thread))
        if "refused" in constraint.value:
            raise InvalidRequest(f"no: {constraint.value}", code="unsupported_schema")
        return constraint

    def before(self, constraint: Constraint) -> list[Turn]:
        """The turns that ended before `constraint` was read wholly, in the same thread."""
        at, last = next(
            (i, turn)
            for i, turn in enumerate(self.turns)
            if turn.is_whole and turn.constraint == constraint
        )
        return [turn for turn in self.turns[:at] if turn.thread == last.thread]


Tasks = list[asyncio.Task[Constraint]]
Asks = Callable[[Readings, Reader], Awaitable[None]]


def run(asks: Asks) -> Reader:
    reader = Reader()

    async def go() -> None:
        async with asyncio.timeout(30):
            await asks(Readings(), reader)

    asyncio.run(go())
    return reader


async def start(found: Readings, reader: Reader, *constraints: Constraint) -> Tasks:
    tasks = [asyncio.create_task(found.found(reader.work, each)) for each in constraints]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize("count", [1, 8, 64])
def test_an_ordinary_constraint_waits_for_a_first_turn_of_each_bomb(count: int) -> None:
    """Whatever the bombs take: here a million steps each, a second."""
    bombs = [takes(1_000_000, f"{i}") for i in range(count)]
    ordinary = takes(3000)

    async def asks(found: Readings, reader: Reader) -> None:
        reader.gate.clear()
        waiting = await start(found, reader, *bombs)
        (mine,) = await start(found, reader, ordinary)
        reader.gate.set()
        assert await mine == ordinary
        for task in waiting:
            task.cancel()

    before = run(asks).before(ordinary)
    assert sum(turn.steps for turn in before) <= count * FIRST
    assert len(before) == count


def test_a_larger_one_waits_in_proportion_to_itself() -> None:
    bombs = [takes(10_000_000, f"{i}") for i in range(8)]
    larger = takes(50_000)

    async def asks(found: Readings, reader: Reader) -> None:
        reader.gate.clear()
        waiting = await start(found, reader, *bombs)
        (mine,) = await start(found, reader, larger)
        reader.gate.set()
        assert await mine == larger
        for task in waiting:
            task.cancel()

    before = run(asks).before(larger)
    others = sum(turn.steps for turn in before if turn.constraint != larger)
    assert 0 < others <= 8 * FIRST * (1 + FACTOR + FACTOR**2)


def test_the_first_long_one_is_not_passed_for_ever(monkeypatch) -> None:
    """Others that take long come all the time."""
    monkeypatch.setattr(readings, "QUICK", 1)
    bomb = takes(FIRST * FACTOR**4 * 2, "bomb")
    others = [takes(FIRST * 2, f"{i}") for i in range(40)]

    async def asks(found: Readings, reader: Reader) -> None:
        reader.gate.clear()
        waiting = await start(found, reader, bomb, *others)
        reader.gate.set()
        await asyncio.gather(*waiting)

    reader = run(asks)
    passed = [turn for turn in reader.before(bomb) if turn.is_whole]
    assert len(passed) < 20
    assert len([turn for turn in reader.turns if turn.is_whole]) == 41


def test_what_nobody_waits_for_is_dropped() -> None:
    bombs = [takes(50_000_000, f"{i}") for i in range(8)]
    ordinary = takes(1000)

    async def asks(found: Readings, reader: Reader) -> None:
        reader.gate.clear()
        waiting = await start(found, reader, *bombs)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        reader.gate.set()
        for i in range(20):
            await found.found(reader.work, takes(1000, f"{i}"))
        assert await found.found(reader.work, ordinary) == ordinary

    reader = run(asks)
    assert len([turn for turn in reader.turns if turn.constraint in bombs]) == 1  # under way


def test_one_who_leaves_takes_it_from_nobody() -> None:
    async def asks(found: Readings, reader: Reader) -> None:
        reader.gate.clear()
        leaver, stays = await start(found, reader, takes(20_000), takes(20_000))
        leaver.cancel()
        await asyncio.sleep(0)
        reader.gate.set()
        assert await stays == takes(20_000)

    reader = run(asks)
    assert [turn.steps for turn in reader.turns] == [FIRST, FIRST * FACTOR, 20_000]


def test_outcomes_are_kept_the_refused_apart_from_the_good() -> None:
    refused = [takes(500, f"refused {i}") for i in range(readings.MAX_KEPT + 10)]
    good = takes(500, "good")

    async def asks(found: Readings, reader: Reader) -> None:
        await found.found(reader.work, good)
        for each in refused:
            with pytest.raises(InvalidRequest, match=each.value):
                await found.found(reader.work, each)
        count = len(reader.turns)
        for _ in range(3):
            with pytest.raises(InvalidRequest, match=refused[-1].value) as raised:
                await found.found(reader.work, refused[-1])
            assert len(raised.traceback) < 6  # it does not grow
            assert await found.found(reader.work, good) == good
        assert len(reader.turns) == count
        with pytest.raises(InvalidRequest):
            await found.found(reader.work, refused[0])
        assert len(reader.turns) == count + 1

    run(asks)


def test_an_error_that_is_no_refusal_is_raised_and_not_kept() -> None:
    tries = []

    def broken(constraint: Constraint) -> Constraint:
        tries.append(constraint)
        raise ZeroDivisionError

    async def asks(found: Readings, reader: Reader) -> None:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await found.found(broken, takes(1))

    run(asks)
    assert len(tries) == 2
