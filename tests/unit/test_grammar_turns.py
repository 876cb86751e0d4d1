"""Which constraint is compiled when: grammar/turns.py, and the processes under it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from radixserve.grammar import check, turns
from radixserve.grammar.compile import Compiler, Limits
from radixserve.grammar.pool import Matcher
from radixserve.grammar.turns import Turn, Turns
from radixserve.grammar.vocabulary import Vocabulary
from radixserve.wire.params import Constraint

SECONDS = 30.0


def named(name: str) -> Constraint:
    return Constraint(kind="regex", value=name)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Lane:
    """Takes one turn in a thread, as a lane of the compiler does."""

    def __init__(self, of: Turns, lane: int, *, warm: bool = False) -> None:
        self._of = of
        self.lane = lane
        self.turn: Turn | str | None = None
        self._thread = threading.Thread(target=self._take, args=(warm,), daemon=True)
        self._thread.start()

    def _take(self, warm: bool) -> None:
        self.turn = self._of.take(self.lane, warm=warm)

    @property
    def name(self) -> str:
        """Of the constraint that it was given."""
        until(lambda: self.turn is not None)
        assert isinstance(self.turn, Turn)
        assert self.turn.constraint is not None
        return self.turn.constraint.value

    @property
    def waits(self) -> bool:
        self._thread.join(0.05)
        return self.turn is None


@pytest.fixture
def queue(monkeypatch) -> Iterator[Turns]:
    monkeypatch.setattr(turns, "LONG", 0.0)  # a turn is long as soon as it asks
    found = Turns(2, SECONDS)
    yield found
    found.close()


def test_one_at_a_time_as_long_as_none_is_long(queue: Turns) -> None:
    first = Lane(queue, 0)
    queue.put(named("a"))
    queue.put(named("b"))
    assert first.name == "a"
    second = Lane(queue, 1)
    assert second.waits
    queue.done(0)
    assert second.name == "b"


def test_a_long_one_goes_on_and_the_others_pass_it(queue: Turns) -> None:
    first = Lane(queue, 0)
    queue.put(named("hard"))
    queue.put(named("b"))
    assert first.name == "hard"
    second = Lane(queue, 1)
    assert first.turn.left() > SECONDS - 10  # it goes on, as there is no other
    assert second.name == "b"
    queue.done(1)
    queue.put(named("c"))
    assert Lane(queue, 1).name == "c"


def test_a_second_long_one_is_stopped_and_comes_when_the_first_has_ended(queue: Turns) -> None:
    first = Lane(queue, 0)
    queue.put(named("hard"))
    assert first.name == "hard"
    queue.put(named("harder"))
    assert first.turn.left() > 0
    queue.put(named("easy"))
    second = Lane(queue, 1)
    assert second.name == "harder"
    assert second.turn.left() <= 0
    assert second.turn.comes_again
    queue.done(1)
    assert Lane(queue, 1).name == "easy"
    queue.done(1)
    third = Lane(queue, 1)
    assert third.waits
    queue.done(0)
    assert third.name == "harder"
    assert third.turn.left() > SECONDS - 10  # nothing stops it again
    queue.put(named("easy"))
    assert Lane(queue, 0).name == "easy"


def test_a_second_long_one_goes_on_while_nothing_waits(queue: Turns) -> None:
    lanes = [Lane(queue, 0), Lane(queue, 1)]
    queue.put(named("hard"))
    queue.put(named("harder"))
    until(lambda: any(lane.turn is not None for lane in lanes))
    first, second = sorted(lanes, key=lambda lane: lane.turn is None)
    assert first.turn.left() > turns.LOOK
    assert second.name == "harder"
    assert second.turn.left() == turns.LOOK
    queue.put(named("easy"))
    assert second.turn.left() <= 0


def test_a_long_one_has_a_process_started_for_the_next(queue: Turns) -> None:
    first, second = Lane(queue, 0), Lane(queue, 1)
    queue.put(named("hard"))
    until(lambda: first.turn is not None or second.turn is not None)
    at_work, idle = (first, second) if first.turn is not None else (second, first)
    assert idle.waits
    assert at_work.turn.left() > 0
    until(lambda: idle.turn is not None)
    assert idle.turn.constraint is None
    queue.done(idle.lane)
    again = Lane(queue, idle.lane, warm=True)
    queue.put(named("easy"))
    assert again.name == "easy"


def test_who_asks_for_much_waits_for_himself(queue: Turns) -> None:
    """Of 64 bombs of one, another one's constraints wait for one each."""
    for i in range(64):
        queue.put(named(f"bomb {i}"), "one")
    for name in ("a", "b"):
        queue.put(named(name), "other")
    found = []
    for _ in range(66):
        turn = queue.take(0, warm=False)
        assert isinstance(turn, Turn)
        assert turn.constraint is not None
        found.append(turn.constraint.value)
        queue.done(0)
    assert found[:5] == ["bomb 0", "a", "bomb 1", "b", "bomb 2"]
    assert found[5:] == [f"bomb {i}" for i in range(3, 64)]


def test_what_another_one_asks_for_too_comes_no_later_for_it(queue: Turns) -> None:
    for name in ("bomb 0", "bomb 1", "shared", "bomb 2"):
        queue.put(named(name), "one")
    queue.put(named("a"), "other")
    queue.also(named("shared"), "other")
    queue.also(named("bomb 1"), "other")  # its own place is no worse
    queue.also(named("gone"), "other")
    found = []
    for _ in range(5):
        turn = queue.take(0, warm=False)
        assert isinstance(turn, Turn)
        assert turn.constraint is not None
        found.append(turn.constraint.value)
        queue.done(0)
    assert found == ["bomb 0", "a", "bomb 1", "shared", "bomb 2"]


def test_what_nobody_wants_any_more_leaves_the_queue(queue: Turns) -> None:
    for name in ("a", "b"):
        queue.put(named(name), "one")
    queue.put(named("c"), "other")
    first = queue.take(0, warm=False)
    assert isinstance(first, Turn)
    assert not queue.drop(named("a"))  # under way
    assert queue.drop(named("b"))
    assert not queue.drop(named("b"))
    first.left()
    assert first.is_long
    second = queue.take(1, warm=False)
    assert isinstance(second, Turn)
    assert second.constraint == named("c")
    queue.put(named("d"), "one")
    assert second.left() == 0
    queue.done(1)
    assert queue.drop(named("c"))  # stopped for d
    queue.done(0)
    assert Lane(queue, 0).name == "d"
    assert Lane(queue, 1).waits


def test_what_counts_is_work_not_the_clock(monkeypatch) -> None:
    monkeypatch.setattr(turns, "LONG", 5.0)
    queue = Turns(1, SECONDS, size=100_000)  # and all take longer with a large vocabulary
    queue.put(named("a"))
    turn = queue.take(0, warm=False)
    assert isinstance(turn, Turn)
    assert turn.left(2.0) == 8.0
    assert not turn.is_long
    assert turn.left(11.0) == 19.0
    assert turn.is_long
    assert turn.left(31.0) <= 0
    assert turn.is_over
    late = Turn(named("a"), SECONDS, queue)
    late._began -= turns.PATIENCE * SECONDS
    assert late.left(1.0) <= 0


def test_a_turn_without_others_has_all_its_time() -> None:
    assert Turn(None, SECONDS).left() > SECONDS - 10
    assert Turn(None, 0.0).left() <= 0
    assert Turn(named("a"), 0.0, Turns(1, 0.0)).left() <= 0


def test_the_lane_with_a_process_goes_first(queue: Turns) -> None:
    cold, warm = Lane(queue, 0), Lane(queue, 1, warm=True)
    until(lambda: queue._warm[1])
    queue.put(named("a"))
    assert warm.name == "a"
    assert cold.waits


def test_a_lane_that_another_stands_in_for_rests(queue: Turns, monkeypatch) -> None:
    monkeypatch.setattr(turns, "IDLE", 0.02)
    lanes = [Lane(queue, 0, warm=True), Lane(queue, 1, warm=True)]
    until(lambda: any(lane.turn == "rest" for lane in lanes))
    (stays,) = (lane for lane in lanes if lane.turn != "rest")
    assert stays.waits
    queue.close()
    until(lambda: stays.turn == "end")


# ---- the processes ----


def hard(size: int) -> Constraint:
    """Takes some seconds with the vocabulary below where `size` is 3000."""
    texts = [f"{i}{'x' * (i % 50)}{i * i}" for i in range(size)]
    return check.check(Constraint(kind="json_schema", value=json.dumps({"enum": texts})))


@pytest.fixture
def compiler(monkeypatch) -> Iterator[Compiler]:
    monkeypatch.setattr(turns, "LONG", 0.02)
    token_bytes = [bytes([code]) for code in range(256)] + [b""]
    found = Compiler(Vocabulary(token_bytes, [256], 257), Limits(seconds=60))
    yield found
    found.close()


def collect(compiler: Compiler, count: int) -> list[str]:
    """The rids of the first `count` matchers, in the order in which they come."""
    found: list[str] = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline
        for rid, matcher in compiler.poll():
            assert isinstance(matcher, Matcher)
            found.append(rid)
        time.sleep(0.002)
    return found


def test_ordinary_constraints_pass_hard_ones(compiler: Compiler) -> None:
    """Two that take seconds and three that do not; each is compiled."""
    for i, size in enumerate((3000, 600)):
        compiler.submit(f"hard {i}", hard(size), ())
    for i in range(3):
        compiler.submit(f"easy {i}", check.check(named(f"a{i}")), ())
    order = collect(compiler, 5)
    assert order[:3] == ["easy 0", "easy 1", "easy 2"]
    assert sorted(order[3:]) == ["hard 0", "hard 1"]
    assert compiler.compiled == 5
