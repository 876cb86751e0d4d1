"""Control tokens that stand for their texts under a constraint that says so."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import numpy as np
import pytest

from radixserve.grammar.check import check
from radixserve.grammar.compile import Compiler, Limits
from radixserve.grammar.pool import Matcher
from radixserve.grammar.vocabulary import Vocabulary
from radixserve.wire.params import Constraint

CALL, WORD, END = 256, 257, 258
COLUMNS = 270
CALLED = {
    "type": "tag",
    "begin": "[CALL] ",
    "content": {"type": "json_schema", "json_schema": {"enum": [1, 2]}},
    "end": "<end>",
}
TRIGGERED = {
    "type": "triggered_tags",
    "triggers": ["[CALL]"],
    "tags": [CALLED],
    "stop_after_first": True,
}


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    token_bytes = [bytes([code]) for code in range(256)] + [b"", b"<end>", b""]
    marks = {CALL: b"[CALL]", WORD: b"<end>", END: b"</s>"}
    found = Compiler(Vocabulary(token_bytes, [END], COLUMNS, marks), Limits(seconds=5))
    yield found
    found.close()


def matcher(compiler: Compiler, found: object, *, marks: bool = True) -> Matcher:
    value = json.dumps({"format": found})
    constraint = check(Constraint(kind="structural_tag", value=value, marks=marks))
    compiler.submit("one", constraint, (END,))
    deadline = time.monotonic() + 60
    while not (ready := compiler.poll()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    [(_, each)] = ready
    assert isinstance(each, Matcher), each
    return each


def legal(guide: Matcher) -> set[int]:
    row = np.zeros(guide.row_words, np.int32)
    guide.fill(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def test_a_mark_is_its_control_token_in_forced_text(compiler) -> None:
    guide = matcher(compiler, CALLED)
    assert guide.begin(100, one_by_one=False).ids == (CALL, *ids(" "))
    assert legal(guide) == set(ids("12"))
    assert guide.take(ord("2"), 90).ids == (ord("2"), WORD)


def test_without_marks_it_is_spelled(compiler) -> None:
    guide = matcher(compiler, CALLED, marks=False)
    assert guide.begin(100, one_by_one=False).ids == ids("[CALL] ")
    guide = matcher(compiler, TRIGGERED, marks=False)
    guide.begin(100, one_by_one=False)
    assert CALL not in legal(guide)


@pytest.mark.parametrize("way", ["token", "spelled"])
def test_a_model_may_write_either(compiler, way) -> None:
    guide = matcher(compiler, TRIGGERED)
    guide.begin(100, one_by_one=False)
    assert {CALL, WORD, ord("x"), ord("[")} <= legal(guide)
    assert END in legal(guide)
    guide.take(ord("x"), 99)
    if way == "token":
        assert guide.take(CALL, 98).ids == (CALL, *ids(" "))
    else:
        *before, last = ids("[CALL]")
        for token in before:
            guide.take(token, 98)
        assert guide.take(last, 90).ids == (last, *ids(" "))
    assert legal(guide) == set(ids("12"))
    guide.take(ord("1"), 80)
    assert guide.finished


def test_an_end_token_is_never_text(compiler) -> None:
    free = {"type": "any_text", "excludes": ["zz"]}
    guide = matcher(compiler, free)
    guide.begin(100, one_by_one=False)
    assert guide.take(END, 99).stopped


def test_stop_strings_do_not_count_control_tokens(compiler) -> None:
    """As the engine counts: bytes of other tokens."""
    begin = {"type": "const_string", "value": "ab[CALL]"}
    sequence = {"type": "sequence", "elements": [begin, {"type": "any_text"}]}
    guide = matcher(compiler, sequence)
    assert guide.begin(100, one_by_one=False).ids == (*ids("ab"), CALL)
    guide.take(ord("c"), 90)
    assert [guide.whole_at(size) for size in (0, 1, 2, 3)] == [False, False, True, True]
