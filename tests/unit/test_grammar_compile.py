"""The compiler's child, its limits and cache, and matchers over tokens."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import numpy as np
import pytest

from radixserve.errors import InternalError, InvalidRequest, QueueFull, RequestError
from radixserve.grammar.check import check
from radixserve.grammar.compile import Compiler, Limits
from radixserve.grammar.pool import Matcher, RowFiller
from radixserve.grammar.vocabulary import Vocabulary
from radixserve.wire.params import Constraint

WORDS = [b'{"', b'": ', b"true", b"false", b"yes", b'"n', b", ", b"<s>"]
CONTROL, END, OTHER_END = 256 + len(WORDS), 256 + len(WORDS) + 1, 256 + len(WORDS) + 2
COLUMNS = OTHER_END + 30


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


def matcher(compiler: Compiler, constraint: Constraint, *stops: int) -> Matcher:
    compiler.submit("one", constraint, stops)
    found = wait(compiler, "one")["one"]
    assert isinstance(found, Matcher), found
    return found


def legal(found: Matcher) -> list[int]:
    row = np.zeros(-(-COLUMNS // 32), np.int32)
    found.fill(row)
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def feed(found: Matcher, text: bytes) -> None:
    for code in text:
        found.accept(code)


OBJECT = {"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"]}


def test_g13_g14_no_stop_and_no_control_token_before_the_end(compiler):
    found = matcher(compiler, schema(OBJECT), 65)
    assert legal(found) == [ord("{"), 256]
    feed(found, b'{"n": "ab')
    inside = legal(found)
    assert 256 + WORDS.index(b"yes") in inside
    assert not {CONTROL, END, OTHER_END, 65, *range(OTHER_END + 1, COLUMNS + 8)} & set(inside)
    with pytest.raises(ValueError, match="before the grammar may end"):
        found.accept(END)
    feed(found, b'"}')
    assert found.finished
    assert found.must_end
    assert legal(found) == [65, END, OTHER_END]


def test_g16_after_the_end_only_stops(compiler):
    found = matcher(compiler, check(Constraint(kind="ebnf", value='root ::= "yes" | "no"')))
    assert not found.finished
    found.accept(256 + WORDS.index(b"yes"))
    assert legal(found) == [END, OTHER_END]
    found.accept(OTHER_END)
    assert legal(found) == [END, OTHER_END]
    with pytest.raises(ValueError, match="not allowed"):
        found.accept(ord("y"))
    empty = matcher(compiler, check(Constraint(kind="regex", value="")))
    assert empty.must_end


def test_may_end_but_need_not(compiler):
    found = matcher(compiler, check(Constraint(kind="regex", value="[0-9]{1,2}")))
    found.accept(ord("1"))
    assert found.finished
    assert not found.must_end
    assert {END, ord("0")} <= set(legal(found))
    with pytest.raises(ValueError, match="not allowed"):
        found.accept(ord("x"))


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
        compiler.submit(f"r{i}", same[i % 2])
    found = wait(compiler, *(f"r{i}" for i in range(8)))
    assert len({id(m) for m in found.values()}) == 8
    compiler.submit("again", same[0])
    assert [rid for rid, _ in compiler.poll()] == ["again"]  # from the cache, at once


def test_a_batch_fills_its_rows_together(compiler):
    batch = [matcher(compiler, schema(OBJECT)) for _ in range(3)]
    feed(batch[1], b'{"n": "')
    rows = np.zeros((3, -(-COLUMNS // 32)), np.int32)
    RowFiller(2).fill(batch, rows)
    alone = [legal(found) for found in batch]
    bits = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")
    assert [np.flatnonzero(row).tolist() for row in bits] == alone
    assert alone[0] == alone[2] != alone[1]


def test_a_grammar_that_no_token_can_continue():
    token_bytes = [b"a", b"b", b""]
    compiler = Compiler(Vocabulary(token_bytes, [2], 3))
    try:
        compiler.submit("x", check(Constraint(kind="regex", value="a7")))
        found = wait(compiler, "x")["x"]
        assert isinstance(found, Matcher)
        found.accept(0)
        with pytest.raises(InternalError, match="no token"):
            found.fill(np.zeros(1, np.int32))
    finally:
        compiler.close()


def test_g19_a_compilation_past_its_time_is_killed_and_tried_anew():
    compiler = Compiler(make_vocabulary(), Limits(seconds=0.0))
    try:
        compiler.submit("slow", schema(OBJECT))
        compiler.submit("twin", schema(OBJECT))
        compiler.submit("gone", schema({"const": 1}))
        compiler.cancel("gone")
        found = wait(compiler, "slow", "twin")
        assert "gone" not in found
        for error in found.values():
            assert isinstance(error, InvalidRequest)
            assert "longer than" in error.message
            assert error.param == "json_schema"
        compiler.submit("slow", schema(OBJECT))  # failures are not kept: it is tried again
        assert compiler.poll() == []
        assert isinstance(wait(compiler, "slow")["slow"], InvalidRequest)
    finally:
        compiler.close()


def test_bounds_of_queue_and_cache():
    compiler = Compiler(make_vocabulary(), Limits(waiting=2, cache_bytes=100))
    try:
        for i in range(3):
            compiler.submit(f"r{i}", schema({"const": i}))
        found = wait(compiler, "r0", "r1", "r2")
        assert isinstance(found["r2"], QueueFull)
        compiler.submit("r0", schema({"const": 0}))  # larger than the cache: compiled again
        assert compiler.poll() == []
        assert isinstance(wait(compiler, "r0")["r0"], Matcher)
    finally:
        compiler.close()


def test_vocabularies_need_an_end():
    with pytest.raises(ValueError, match="stop ids"):
        Vocabulary([b"a"], [], 1)
