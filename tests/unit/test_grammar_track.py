"""Following an output byte by byte, beside xgrammar's matcher and jsonschema."""

from __future__ import annotations

import json
import random
import time

import jsonschema
import pytest

from radixserve.grammar import ebnf, items, rules, track
from radixserve.grammar.track import State, Track
from tests.grammar_bytes import CLOSED, ByteGrammar, grammar_of, schema_grammar
from tests.grammar_random import modern
from tests.grammar_tracks import Followed, made_schemas, mutated, text_grammars


def track_of(text: str) -> Track:
    found = Track.of(rules.finish(ebnf.read(text)))
    assert found is not None
    return found


def after(found: Track, text: str | bytes) -> State:
    state = found.start.walk(text.encode() if isinstance(text, str) else text)
    assert state is not None
    return state


def check_ending(state: State) -> bytes:
    """The ending has `needs` bytes, and every byte on the way needs one less."""
    text = state.ending()
    assert len(text) == state.needs
    assert (state.needs == 0) == state.may_end
    at = state
    for i, byte in enumerate(text):
        onward = at.step(byte)
        assert onward is not None
        assert onward.needs == len(text) - i - 1
        at = onward
    assert at.may_end
    return text


def check_forced(state: State) -> None:
    """Each forced byte is the only one, and what follows them is no longer forced."""
    at = state
    for byte in state.forced:
        assert not at.may_end
        assert [b for b in range(256) if at.step(b) is not None] == [byte]
        onward = at.step(byte)
        assert onward is not None
        at = onward
    open_ways = sum(at.step(b) is not None for b in range(256))
    assert at.may_end or open_ways > 1
    assert at.must_end == (at.may_end and open_ways == 0)


def followed(grammar: ByteGrammar, rng: random.Random, draws: int) -> list[bytes]:
    """Drawn texts and mutated ones go as in xgrammar."""
    both = Followed(grammar)
    found = [text.encode() for _ in range(draws) if (text := grammar.draw(rng)) is not None]
    for text in found:
        state = both.check_text(text)
        assert state is not None
        assert state.may_end
        for _ in range(6):
            both.check_text(mutated(text, rng))
    return found


def test_random_schemas_go_as_in_the_grammar_engine_and_end_validly():
    rng = random.Random(21)
    ended = 0
    for schema, grammar in made_schemas(rng, 100):
        valid = jsonschema.Draft202012Validator(
            modern(schema), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        found = Track.of(grammar.grammar)
        assert found is not None
        for text in followed(grammar, rng, 2):
            state = found.start
            for i, byte in enumerate(text):
                whole = text[:i] + check_ending(state)
                assert valid.is_valid(json.loads(whole)), (whole, schema)
                ended += 1
                if i % 7 == 0:
                    check_forced(state)
                onward = state.step(byte)
                assert onward is not None
                assert state.needs is not None
                assert onward.needs is not None
                assert onward.needs >= state.needs - 1
                state = onward
    assert ended > 1000


def test_other_constraints_go_as_in_the_grammar_engine():
    rng = random.Random(22)
    for grammar in text_grammars():
        both = Followed(grammar)
        for text in followed(grammar, rng, 12):
            for i in range(len(text) + 1):
                state = both.track.start.walk(text[:i])
                assert state is not None
                whole = text[:i] + check_ending(state)
                assert grammar.accepts(whole.decode())
                check_forced(state)


def test_characters_are_cut_at_every_byte():
    found = track_of('root ::= "é" ("€" | [🚀-🚄] | [à-ÿ]) "!"')
    assert found.start.forced == "é".encode()
    for text in ("é€!", "é🚀!", "éü!"):
        data = text.encode()
        for i in range(len(data) + 1):
            state = after(found, data[:i])
            assert state.needs == (len(data) - i if i > 2 else 5 - i)
            assert (data[:i] + check_ending(state)).decode().endswith("!")
    assert after(found, b"\xc3\xa9\xf0").forced == b"\x9f\x9a"
    assert after(found, b"\xc3\xa9\xe2").forced == b"\x82\xac!"
    assert found.start.walk(b"\xc3\xa9\xf0\x9f\x9b") is None
    assert found.start.walk("é🚅".encode()) is None


def test_what_must_follow():
    grammar = schema_grammar(
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "kind": {"enum": ["red", "reddish"]}},
            "required": ["name", "kind"],
            **CLOSED,
        }
    )
    found = Track.of(grammar.grammar)
    assert found is not None
    assert found.start.forced == b'{"name": "'
    assert after(found, '{"name": "x').forced == b""
    assert after(found, '{"name": "x"').forced == b', "kind": "red'
    red = after(found, '{"name": "x", "kind": "red')
    assert red.forced == b""
    assert red.ending() == b'"}'
    assert after(found, '{"name": "x", "kind": "redd').forced == b'ish"}'
    end = after(found, '{"name": "x", "kind": "red"}')
    assert end.must_end
    assert end.may_end
    assert (end.needs, end.forced, end.ending()) == (0, b"", b"")
    assert end.step(32) is None


def test_endings_read_well():
    found = track_of('root ::= [ -~]{3} ("\\x01" | "5" | "-") ([A-Z] | [a-z])')
    assert check_ending(found.start) == b"aaa5a"


def test_forced_text_is_bounded():
    found = track_of("root ::= " + " ".join(['"' + "x" * 3000 + '"'] * 3))
    assert found.start.forced == b"x" * track.MAX_FORCED
    assert after(found, found.start.forced).forced == b"x" * track.MAX_FORCED
    assert len(check_ending(found.start)) == 9000


def test_deep_nesting_and_long_counts():
    found = track_of('root ::= "[" root? "]"')
    deep = after(found, "[" * 3000)
    assert deep.ending() == b"]" * 3000
    assert after(found, "[" * 3000 + "]" * 2999).forced == b"]"
    any_json = Track.of(grammar_of("json_object", "").grammar)
    assert any_json is not None
    state = after(any_json, '{"a": [' * 1000)
    assert state.ending() == b"]}" * 1000
    counted = track_of("root ::= " + " ".join(["[ab]{5000}"] * 3) + ' "."')
    assert counted.start.needs == 15001
    assert after(counted, "b" * 12000).needs == 3001


A, B, Q = rules.Ref("a"), rules.Ref("b"), rules.Text("q")


@pytest.mark.parametrize(
    "table",
    [
        {"root": rules.alt(rules.seq(rules.Ref("root"), Q), Q)},
        {"root": A, "a": rules.seq(rules.optional(Q), B), "b": rules.alt(rules.seq(A, Q), Q)},
        {"root": rules.alt(rules.seq(rules.repeat(Q, 0, None), rules.Ref("root"), Q), Q)},
        {"root": rules.alt(A, Q), "a": rules.repeat(rules.seq(B, Q), 1, 2), "b": rules.alt(Q, A)},
    ],
)
def test_rules_that_begin_with_themselves_are_not_followed(table):
    assert items.begins_with_itself(rules.finish(table))
    assert Track.of(rules.finish(table)) is None


def test_recursion_behind_a_byte_is_followed():
    assert not items.begins_with_itself(rules.finish(ebnf.read('root ::= "(" root ")" | "x"')))
    assert Track.of(rules.finish({"root": rules.NEVER})) is None


def test_repetitions_of_what_may_be_empty():
    maybe = rules.Repeat(rules.Alt((rules.Text("ab"), rules.Text(""))), 2, 4)
    forever = rules.Repeat(rules.Repeat(rules.Text("c"), 0, 1), 1, None)
    table: dict[str, rules.Expr] = {"root": rules.Seq((maybe, forever, rules.Text(".")))}
    found = Track.of(rules.finish(table))
    assert found is not None
    for text in (".", "ab.", "ababababccc.", "c."):
        assert after(found, text).must_end
    assert found.start.walk(b"ababababab") is None
    assert found.start.needs == 1


def test_too_many_readings_are_lost_and_stay_bounded():
    found = track_of('root ::= ((("a" | "aa"){1,100}){1,100}){1,100} "b"')
    began = time.monotonic()
    state: State | None = found.start
    for _ in range(500):
        assert state is not None
        state = state.step(ord("a"))
    assert state is not None
    assert state.lost
    assert (state.needs, state.forced, state.may_end, state.must_end) == (None, b"", False, False)
    assert state.step(0) is state
    with pytest.raises(ValueError, match="lost"):
        state.ending()
    assert found.remembered < 4 * (track.MAX_PLACES + track.MAX_STATES)
    assert time.monotonic() - began < 10
    assert check_ending(found.start) == b"ab"


def test_many_readings_that_end_alike_are_followed_as_one():
    found = track_of('root ::= "[" (root | any)? "]"\nany ::= "[" (any ("," any)*)? "]"')
    state = after(found, "[" * 1000)
    assert found.remembered < 50 * 1000
    assert check_ending(state) == b"]" * 1000
    assert after(found, "[" * 1000 + "]" * 500 + ",[]" + "]" * 500).must_end
    assert found.start.walk(b"[" * 20 + b"]" * 20 + b",[]") is None


def test_memory_is_dropped_and_held_states_stay_valid():
    grammar = schema_grammar({"type": "array", "items": {"type": "string", "maxLength": 5000}})
    found = Track.of(grammar.grammar)
    assert found is not None
    held = after(found, '["one", "tw')
    most = 0
    state = after(found, "[")
    for i in range(60):
        onward = state.walk(f'"{"né" * 900}{i}", '.encode())
        assert onward is not None
        state = onward
        most = max(most, found.remembered)
    assert most <= track.MAX_PLACES + track.MAX_STATES + 10_000
    assert held.walk(b'o", "three"]') is not None
    assert held.ending() == b'"]'
    assert held.step(ord("\n")) is None
    assert after(found, '["one", "tw').needs == held.needs


def test_a_long_text_is_not_kept_whole():
    found = Track.of(schema_grammar({"const": "x" * 30_000}).grammar)
    assert found is not None
    state = after(found, '"' + "x" * 25_000)
    assert found.remembered < 30_000  # two of each byte, but for the drop
    assert state.ending() == b"x" * 5_000 + b'"'
    assert after(found, '"' + "x" * 25_000).needs == state.needs
