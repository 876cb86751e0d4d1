"""Constraints that would stall an engine (G19): refused, or compiled and followed in time."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator

import numpy as np
import pytest

from radixserve.errors import InvalidRequest, RequestError
from radixserve.grammar import check, rules
from radixserve.grammar.compile import Compiler, Limits
from radixserve.grammar.pool import Matcher
from radixserve.grammar.track import Track
from radixserve.grammar.vocabulary import Vocabulary
from radixserve.wire.params import Constraint

END = 259
LIMIT = 10.0  # seconds, for all of one constraint
ROOM = 100_000


def nested(depth: int) -> str:
    opened = '{"type": "object", "required": ["a"], "properties": {"a": '
    return opened * depth + '{"type": "integer"}' + "}}" * depth


TREE = {"$ref": "#/$defs/T", "$defs": {"T": {"type": "array", "items": {"$ref": "#/$defs/T"}}}}
EITHER = {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "array", "maxItems": 3}]}
BOMBS = {
    "enum of 20000": ("json_schema", {"enum": [f"v{i}" for i in range(20000)]}, '"v'),
    "enum of 4000": ("json_schema", {"enum": [f"value {i}" for i in range(4000)]}, '"value 39'),
    "nested 1000 deep": ("json_schema", nested(1000), '{"a": '),
    "nested 60 deep": ("json_schema", nested(60), '{"a": ' * 60),
    "regex": ("regex", "((a{1,100}){1,100}){1,100}", "a" * 40),
    "ebnf counts": ("ebnf", 'root ::= ((("a"){1,100}){1,100}){1,100}', "a" * 40),
    "ebnf two ways": ("ebnf", 'root ::= (("a" | "aa"){1,50}){1,50} "b"', "a" * 40),
    "nullable": ("ebnf", 'root ::= (("a"?)*)*', "aaa"),
    "brackets": ("ebnf", 'root ::= "" | "(" root ")" | root root', "()()()"),
    "brackets after one": ("ebnf", 'root ::= "()" | "(" root ")" | root root', "()" * 20),
    "recursive ref": ("json_schema", TREE, "[" * 5000),
    "recursive either": ("json_schema", EITHER, "[" * 300),
    "200 places": ("json_schema", {"type": "array", "prefixItems": [{"type": "null"}] * 200}, "["),
}


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    token_bytes = [bytes([code]) for code in range(256)] + [b"aa", b"()", b"[[", b""]
    found = Compiler(Vocabulary(token_bytes, [END], END + 1), Limits(seconds=5, mask_seconds=0.5))
    found.submit("warm", Constraint(kind="regex", value="a"), (END,))
    wait(found, "warm")
    yield found
    found.close()


def wait(compiler: Compiler, *rids: str) -> dict[str, Matcher | RequestError]:
    found: dict[str, Matcher | RequestError] = {}
    deadline = time.monotonic() + 60
    while not found.keys() >= set(rids):
        assert time.monotonic() < deadline
        found.update(compiler.poll())
        time.sleep(0.002)
    return found


def push(matcher: Matcher, text: str) -> bool:
    """Give `text` byte by byte; whether it came through, rather than the request ended."""
    row = np.zeros(-(-(END + 1) // 32), np.int32)
    matcher.begin(ROOM, one_by_one=True)
    for byte in text.encode():
        matcher.fill(row)
        if matcher.take(byte, ROOM).error is not None:
            return False
    return True


def bomb(name: str) -> tuple[Constraint, str]:
    kind, value, text = BOMBS[name]
    value = value if isinstance(value, str) else json.dumps(value)
    return Constraint(kind=kind, value=value), text


def checked(constraint: Constraint) -> Constraint | InvalidRequest:
    try:
        return check.check(constraint)
    except InvalidRequest as error:
        return error


REFUSED = {"enum of 20000", "nested 1000 deep", "regex", "nullable", "brackets"}


@pytest.mark.parametrize("name", BOMBS)
def test_g19_refused_or_done_in_time(compiler, name):
    constraint, text = bomb(name)
    began = time.monotonic()
    found = checked(constraint)
    if isinstance(found, InvalidRequest):
        assert found.code == "unsupported_schema"
        assert name in REFUSED
    else:
        assert name not in REFUSED
        before = compiler.compiled
        for i in range(8):
            compiler.submit(f"r{i}", found, (END,))
        matchers = wait(compiler, *(f"r{i}" for i in range(8)))
        assert compiler.compiled == before + 1
        matcher = matchers["r0"]
        assert isinstance(matcher, Matcher)
        assert push(matcher, text)
    assert time.monotonic() - began < LIMIT
    compiler.submit("after", Constraint(kind="regex", value="ab"), (END,))
    assert isinstance(wait(compiler, "after")["after"], Matcher)


def test_g19_the_track_follows_where_the_engine_does(compiler):
    for name in ("enum of 4000", "nested 60 deep", "recursive either", "200 places"):
        given, text = bomb(name)
        constraint = check.check(given)
        compiler.submit(name, constraint, (END,))
        matcher = wait(compiler, name)[name]
        assert isinstance(matcher, Matcher)
        assert push(matcher, text)
        found = Track.of(check.grammar(constraint))
        assert found is not None
        state = found.start.walk(text.encode())
        assert state is not None
        ending = state.ending()
        for byte in ending:
            assert not matcher.take(byte, ROOM).error
        assert matcher.must_end


def test_rules_cross_from_the_child_however_deep():
    places = {"type": "array", "prefixItems": [{"type": "integer"}] * 1000}
    grammar = check.grammar(Constraint(kind="json_schema", value=json.dumps(places)))
    copy = pickle.loads(pickle.dumps(grammar))
    assert rules.ebnf(copy) == rules.ebnf(grammar)
    found = Track.of(copy)
    assert found is not None
    state = found.start.walk(b"[" + b"1, " * 999 + b"1")
    assert state is not None
    assert state.ending() == b"]"
    assert found.start.walk(b"[" + b"1, " * 1000 + b"1") is None
