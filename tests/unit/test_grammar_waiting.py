"""Who may wait for the compiler, and what becomes of who leaves: grammar/compile.py."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from radixserve.errors import QueueFull
from radixserve.grammar.check import check
from radixserve.grammar.compile import Compiler, Limits
from radixserve.grammar.pool import Matcher
from radixserve.grammar.vocabulary import Vocabulary
from radixserve.wire.params import Constraint

WAITING = 4


def named(name: str) -> Constraint:
    return check(Constraint(kind="regex", value=name))


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    token_bytes = [bytes([code]) for code in range(256)] + [b""]
    found = Compiler(Vocabulary(token_bytes, [256], 257), Limits(waiting=WAITING))
    yield found
    found.close()


@pytest.fixture
def resting(compiler: Compiler) -> Compiler:
    """One that compiles nothing, so that all that is asked for waits."""
    compiler._turns.close()
    for thread in compiler._threads:
        thread.join()
    return compiler


def refused(compiler: Compiler) -> list[str]:
    found = compiler.poll()
    assert all(isinstance(outcome, QueueFull) for _, outcome in found)
    return [rid for rid, _ in found]


def flood(compiler: Compiler, asker: str) -> None:
    for i in range(WAITING):
        compiler.submit(f"{asker}{i}", named(f"hard{i}"), (), asker)


def test_who_has_most_gives_way_and_nobody_else(resting: Compiler) -> None:
    flood(resting, "a")
    assert refused(resting) == []
    resting.submit("a4", named("more"), (), "a")
    assert refused(resting) == ["a4"]
    resting.submit("b0", named("b0"), (), "b")
    assert refused(resting) == ["a3"]
    resting.submit("c0", named("c0"), (), "c")
    assert refused(resting) == ["a2"]
    resting.submit("b1", named("b1"), (), "b")  # a has two, and so would b
    assert refused(resting) == ["b1"]
    assert resting.waiting == WAITING


def test_one_who_asks_under_two_names_gives_way_too(resting: Compiler) -> None:
    flood(resting, "a")
    flood(resting, "b")
    resting.submit("c0", named("c0"), (), "c")
    assert refused(resting) == ["a3", "b3"]
    resting.submit("c1", named("hard0"), (), "c")  # needs no room
    resting.submit("d0", named("d0"), (), "d")
    resting.submit("e0", named("e0"), (), "e")
    assert refused(resting) == ["a2", "b2", "a1", "b1"]
    resting.submit("f0", named("f0"), (), "f")
    assert refused(resting) == ["c0"]


def test_what_is_under_way_gives_way_to_nobody(resting: Compiler) -> None:
    flood(resting, "a")
    for i in range(WAITING):
        resting._turns.drop(named(f"hard{i}"))  # as if lanes had taken them
    resting.submit("b0", named("b0"), (), "b")
    assert refused(resting) == ["b0"]


def test_a_cancelled_flood_leaves_at_once(compiler: Compiler) -> None:
    flood(compiler, "")
    for i in range(WAITING):
        compiler.cancel(str(i))
    assert compiler.waiting == 0
    assert len(compiler._waiting) <= 1  # the one under way
    for i in range(WAITING):
        compiler.submit(f"x{i}", named(f"x{i}"), ())
    found: list[str] = []
    deadline = time.monotonic() + 60
    while len(found) < WAITING:
        assert time.monotonic() < deadline
        for rid, outcome in compiler.poll():
            assert isinstance(outcome, Matcher)
            found.append(rid)
        time.sleep(0.002)
    assert found == [f"x{i}" for i in range(WAITING)]
    assert compiler.compiled <= WAITING + 1
    assert not compiler._dropped


def test_one_cancelled_when_it_has_been_compiled_is_forgotten(compiler: Compiler) -> None:
    compiler.submit("gone", named("a"), ())
    deadline = time.monotonic() + 60
    while compiler._done.empty():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    compiler.cancel("gone")
    assert compiler.poll() == []
    assert compiler.compiled == 1
    assert not compiler._dropped


def test_asked_for_again_it_waits_in_its_askers_name(resting: Compiler) -> None:
    wanted = named("a")
    resting.submit("first", wanted, (), "b")
    resting._turns.drop(wanted)  # as if a lane had taken it
    resting.cancel("first")
    resting.submit("again", wanted, (), "b")
    resting._done.put((wanted, None, 0.0))  # the lane gave it up before
    assert resting.poll() == []
    assert list(resting._turns._new._queues) == ["b"]
