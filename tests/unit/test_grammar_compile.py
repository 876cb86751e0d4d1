"""The compiler's child, its limits and cache, and matchers over tokens."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from radixserve.errors import InternalError, InvalidRequest, QueueFull, RequestError
from radixserve.grammar.check import check
from radixserve.grammar.child import Child
from radixserve.grammar.compile import Compiler, Limits
from radixserve.grammar.pool import Matcher, RowFiller
from radixserve.grammar.vocabulary import Vocabulary
from radixserve.guide import Close, Taken
from radixserve.wire.params import Constraint

WORDS = [b'{"', b'": ', b"true", b"false", b"yes", b'"n', b", ", b"<s>"]
CONTROL, END, OTHER_END = 256 + len(WORDS), 256 + len(WORDS) + 1, 256 + len(WORDS) + 2
COLUMNS = OTHER_END + 30
ROOM = 100


def make_vocabulary() -> Vocabulary:
    token_bytes = [bytes([code]) for code in range(256)] + WORDS + [b"", b"", b"</s>"]
    return Vocabulary(token_bytes, [END, OTHER_END], COLUMNS)


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    found = Compiler(make_vocabulary(), Limits(seconds=5))
    yield found
    found.close()


def schema(value: object) -> Constraint:
    return check(Constraint(kind="json_schema", value=json.dumps(value)))


def wait(compiler: Compiler, *rids: str) -> dict[str, Matcher | RequestError]:
    found: dict[str, Matcher | RequestError] = {}
    deadline = time.monotonic() + 60
    while not found.keys() >= set(rids):
        assert time.monotonic() < deadline, f"only {found.keys()} came"
        found.update(compiler.poll())
        time.sleep(0.002)
    return found


def make_matcher(compiler: Compiler, constraint: Constraint, *stops: int) -> Matcher:
    compiler.submit("one", constraint, (END, OTHER_END, *stops))
    found = wait(compiler, "one")["one"]
    assert isinstance(found, Matcher), found
    return found


def matcher(compiler: Compiler, constraint: Constraint, *stops: int) -> Matcher:
    """One that forces nothing by itself, at its beginning."""
    found = make_matcher(compiler, constraint, *stops)
    found.begin(ROOM, one_by_one=True)
    return found


def legal(found: Matcher) -> list[int]:
    row = np.zeros(-(-COLUMNS // 32), np.int32)
    found.fill(row)
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def feed(found: Matcher, ids: Iterable[int]) -> None:
    """Take tokens one by one, forced ones too."""
    for token in ids:
        assert not found.take(token, ROOM).forced


OPENING = (256, ord("n"), 257)  # {" n ":
OBJECT = {"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"]}


def test_g13_g14_no_stop_and_no_control_token_before_the_end(compiler):
    found = matcher(compiler, schema(OBJECT), 65)
    assert legal(found) == [256]
    feed(found, [*OPENING, *b'"ab'])
    inside = legal(found)
    assert 256 + WORDS.index(b"yes") in inside
    assert not {CONTROL, END, OTHER_END, 65, *range(OTHER_END + 1, COLUMNS + 8)} & set(inside)
    with pytest.raises(ValueError, match="before the grammar may end"):
        found.take(END, ROOM)
    feed(found, b'"')
    assert found.take(ord("}"), ROOM).close is Close.WHOLE
    assert found.finished
    assert found.must_end
    assert legal(found) == [65, END, OTHER_END]


def test_g16_after_the_end_only_stops(compiler):
    found = matcher(compiler, check(Constraint(kind="ebnf", value='root ::= "yes" | "no"')))
    assert not found.finished
    assert found.take(256 + WORDS.index(b"yes"), ROOM) == Taken((260,), close=Close.WHOLE)
    assert legal(found) == [END, OTHER_END]
    assert found.take(OTHER_END, ROOM) == Taken((OTHER_END,), close=Close.WHOLE, stopped=True)
    with pytest.raises(ValueError, match="not allowed"):
        found.take(ord("y"), ROOM)
    empty = make_matcher(compiler, check(Constraint(kind="regex", value="")))
    assert empty.begin(ROOM, one_by_one=False) == Taken((), close=Close.WHOLE)


def test_may_end_but_need_not(compiler):
    found = matcher(compiler, check(Constraint(kind="regex", value="[0-9]{1,2}")))
    assert found.take(ord("1"), ROOM) == Taken((ord("1"),))
    assert found.finished
    assert not found.must_end
    assert {END, ord("0")} <= set(legal(found))
    with pytest.raises(ValueError, match="not allowed"):
        found.take(ord("x"), ROOM)


def test_end_tokens_that_end_nothing_are_masked(compiler):
    """ignore_eos: the request has no end token, the grammar alone ends it."""
    compiler.submit("one", check(Constraint(kind="regex", value="[0-9]{1,2}")), ())
    found = wait(compiler, "one")["one"]
    assert isinstance(found, Matcher)
    found.begin(ROOM, one_by_one=True)
    found.take(ord("1"), ROOM)
    assert legal(found) == list(range(ord("0"), ord("9") + 1))
    assert found.take(ord("2"), ROOM).close is Close.WHOLE


def test_forced_text_and_the_shortest_ending(compiler):
    found = make_matcher(compiler, schema(OBJECT))
    opening = found.begin(ROOM, one_by_one=False)
    assert opening == Taken(OPENING, 3)  # not the quote: "n might come
    found.take(ord('"'), ROOM)
    assert found.take(ord("a"), 3) == Taken((ord("a"),))
    short = found.take(ord("b"), 1)  # '"}' takes two tokens, so b does not fit
    assert short == Taken((ord('"'), ord("}")), 2, Close.SHORT)


def test_no_room_for_the_shortest_output(compiler):
    found = make_matcher(compiler, schema(OBJECT))
    with pytest.raises(InvalidRequest, match=r"takes \d+ tokens, there is room for 3") as caught:
        found.begin(3, one_by_one=False)
    assert caught.value.param == "max_new_tokens"


def test_one_by_one_every_token_is_sampled(compiler):
    """With log-probabilities the same tokens come through the mask, the ending too."""
    free = make_matcher(compiler, schema(OBJECT))
    found = make_matcher(compiler, schema(OBJECT))
    opening = free.begin(ROOM, one_by_one=False).ids
    assert found.begin(ROOM, one_by_one=True) == Taken(())
    for token in opening:
        assert legal(found) == [token]
        assert found.take(token, ROOM) == Taken((token,))
    found.take(ord('"'), 3)
    found.take(ord("a"), 2)
    assert found.take(ord("b"), 1) == Taken((), again=True)
    assert legal(found) == [ord('"')]
    assert found.take(ord('"'), 1) == Taken((ord('"'),))
    assert found.take(ord("}"), 0) == Taken((ord("}"),), close=Close.SHORT)


def test_whole_at_asks_for_whole_outputs(compiler):
    found = matcher(compiler, check(Constraint(kind="regex", value="a+b?")))
    feed(found, b"aa")
    assert [found.whole_at(size) for size in range(3)] == [False, True, True]
    recursive = 'root ::= root "a" | "b"'  # only the grammar engine can follow it
    found = matcher(compiler, check(Constraint(kind="ebnf", value=recursive)))
    feed(found, b"baa")
    assert [found.whole_at(size) for size in range(4)] == [False, True, True, True]


def test_equal_constraints_compile_once_and_stay(compiler):
    same = [
        check(Constraint(kind="json_schema", value=text))
        for text in (
            '{"enum": ["q", "r"], "title": "t"}',
            '{ "description": "x", "enum":["q","r"] }',
        )
    ]
    assert same[0] == same[1]
    for i in range(8):
        compiler.submit(f"r{i}", same[i % 2], ())
    found = wait(compiler, *(f"r{i}" for i in range(8)))
    assert len({id(m) for m in found.values()}) == 8
    compiler.submit("again", same[0], ())
    assert [rid for rid, _ in compiler.poll()] == ["again"]  # from the cache, at once


@pytest.mark.parametrize("cost", [0.0, 9.0])
def test_a_batch_fills_its_rows_together(compiler, monkeypatch, cost):
    batch = [matcher(compiler, schema(OBJECT)) for _ in range(3)]
    feed(batch[1], OPENING)
    batch[2].take(256, ROOM)
    monkeypatch.setattr("radixserve.grammar.pool.THREADS_COST", cost)
    filler = RowFiller(compiler._vocabulary, 2, slow=1.0)
    filler.rows(batch[:1])
    rows = filler.rows([*batch, None])
    bits = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")
    alone = [legal(found) for found in batch]
    assert [np.flatnonzero(row).tolist() for row in bits[:3]] == alone
    assert alone[0] != alone[1] != alone[2]
    assert bits[3].all()


def test_a_mask_that_takes_too_long_ends_the_request(compiler):
    slow = Compiler(make_vocabulary(), Limits(mask_seconds=0.0))
    try:
        batch = [make_matcher(slow, schema(OBJECT)) for _ in range(2)]
        for found in batch:
            found.begin(ROOM, one_by_one=False)
        filler = RowFiller(make_vocabulary(), 2, slow=0.0)
        filler._together = 9
        for _ in range(2):  # the first batch only tells that someone is slow
            filler.rows(batch)
            taken = [found.take(ord('"'), ROOM) for found in batch]
        for each in taken:
            assert isinstance(each.error, InvalidRequest)
            assert "finding the next tokens" in each.error.message
    finally:
        slow.close()


def test_a_grammar_that_no_token_can_continue():
    token_bytes = [b"a", b"b", b""]
    compiler = Compiler(Vocabulary(token_bytes, [2], 3))
    try:
        found = make_matcher(compiler, check(Constraint(kind="regex", value="a7")))
        found.begin(ROOM, one_by_one=True)
        found.take(0, ROOM)
        found.fill(np.zeros(1, np.int32))
        assert isinstance(found.take(2, ROOM).error, InternalError)
    finally:
        compiler.close()


def test_g19_a_compilation_past_its_time_is_killed_and_tried_anew():
    compiler = Compiler(make_vocabulary(), Limits(seconds=0.0))
    try:
        compiler.submit("slow", schema(OBJECT), ())
        compiler.submit("twin", schema(OBJECT), ())
        compiler.submit("gone", schema({"const": 1}), ())
        compiler.cancel("gone")
        found = wait(compiler, "slow", "twin")
        assert "gone" not in found
        for error in found.values():
            assert isinstance(error, InvalidRequest)
            assert "longer than" in error.message
            assert error.param == "json_schema"
        compiler.submit("slow", schema(OBJECT), ())  # the failure is kept for a minute
        assert [rid for rid, _ in compiler.poll()] == ["slow"]
        compiler._refused.clear()
        compiler.submit("slow", schema(OBJECT), ())
        assert compiler.poll() == []
        assert isinstance(wait(compiler, "slow")["slow"], InvalidRequest)
    finally:
        compiler.close()


def test_bounds_of_queue_and_cache():
    compiler = Compiler(make_vocabulary(), Limits(waiting=2, cache_bytes=100))
    try:
        for i in range(3):
            compiler.submit(f"r{i}", schema({"const": i}), ())
        found = wait(compiler, "r0", "r1", "r2")
        assert isinstance(found["r2"], QueueFull)
        compiler.submit("r0", schema({"const": 0}), ())  # larger than the cache: compiled again
        assert compiler.poll() == []
        assert isinstance(wait(compiler, "r0")["r0"], Matcher)
    finally:
        compiler.close()


def test_stop_ids_are_ids():
    with pytest.raises(ValueError, match="stop ids"):
        Vocabulary([b"a"], [1], 1)


def test_a_model_without_end_tokens():
    """The grammar alone ends an output."""
    compiler = Compiler(Vocabulary([b"a", b"b"], [], 2))
    try:
        compiler.submit("x", check(Constraint(kind="regex", value="(a|b)(a|b)")), ())
        found = wait(compiler, "x")["x"]
        assert isinstance(found, Matcher)
        found.begin(ROOM, one_by_one=False)
        assert found.take(1, ROOM) == Taken((1,))
        assert found.take(0, ROOM) == Taken((0,), close=Close.WHOLE)
    finally:
        compiler.close()


def test_asked_for_again_while_it_is_dropped(compiler):
    for i in range(40):
        constraint = schema({"const": f"dropped {i}"})
        compiler.submit("first", constraint, ())
        compiler.cancel("first")
        if i % 2:
            time.sleep(0.001)
        compiler.submit("second", constraint, ())
        assert isinstance(wait(compiler, "second")["second"], Matcher)


def test_a_child_that_has_grown_is_replaced():
    """Memory that a hard grammar took does not come back by itself."""
    compiler = Compiler(make_vocabulary(), Limits(spare_bytes=-(2**30)))
    try:
        for i in range(2):
            compiler.submit("x", schema({"const": i}), ())
            assert isinstance(wait(compiler, "x")["x"], Matcher)
            assert not any(child.is_running for child in compiler._children)
    finally:
        compiler.close()


def test_a_child_that_was_killed_is_replaced_unseen():
    compiler = Compiler(make_vocabulary())
    try:
        compiler.submit("x", schema({"const": 1}), ())
        wait(compiler, "x")
        (running,) = (child for child in compiler._children if child.is_running)
        running._process.kill()
        compiler.submit("x", schema({"const": 2}), ())
        assert isinstance(wait(compiler, "x")["x"], Matcher)
    finally:
        compiler.close()


def test_own_stop_ids_are_text_where_nothing_else_can_be(compiler):
    found = matcher(
        compiler, check(Constraint(kind="regex", value="a(b|bb)c*")), ord("b"), ord("c")
    )
    assert found.take(ord("a"), ROOM).close is None
    assert legal(found) == [ord("b")]
    assert found.take(ord("b"), ROOM) == Taken((ord("b"),))
    assert {END, ord("b"), ord("c")} <= set(legal(found))  # whole now: they end it
    assert found.take(ord("c"), ROOM) == Taken((ord("c"),), close=Close.WHOLE, stopped=True)


def test_endings_too_long_to_spell_are_refused_at_once(compiler):
    chain = "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(40))
    huge = check(Constraint(kind="ebnf", value=f'root ::= "b" | r0\n{chain}r40 ::= "a"\n'))
    found = make_matcher(compiler, huge)
    assert found.begin(ROOM, one_by_one=False) == Taken(())
    taken = found.take(ord("a"), ROOM)  # nothing fits behind it
    assert taken == Taken((ord("b"),), 1, Close.SHORT)
    alone = check(Constraint(kind="ebnf", value=f'root ::= r0\n{chain}r40 ::= "a"\n'))
    with pytest.raises(InvalidRequest, match="takes at least"):
        make_matcher(compiler, alone).begin(ROOM, one_by_one=False)


def test_a_long_compilation_that_nobody_waits_for_is_given_up(compiler, monkeypatch):
    monkeypatch.setattr("radixserve.grammar.child.WORTH_GIVING_UP", 0.0)
    hard = schema({"enum": [f"{i}{'x' * (i % 50)}{i * i}" for i in range(3000)]})
    compiler.submit("gone", hard, ())
    at_work: list[Child] = []
    while not at_work:
        assert compiler.poll() == [], "it was not hard"
        at_work = [child for child in compiler._children if child._turn is not None]
    process = at_work[0]._process
    compiler.cancel("gone")
    compiler.submit("next", schema({"const": "next"}), ())
    assert isinstance(wait(compiler, "next")["next"], Matcher)
    assert at_work[0]._process is not process
