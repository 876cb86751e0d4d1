"""Constraints to follow, texts under them, and outputs followed beside the grammar engine."""

from __future__ import annotations

import random

import xgrammar

from radixserve.errors import InvalidRequest
from radixserve.grammar.track import State, Track
from radixserve.wire.params import Constraint
from tests.grammar_bytes import ByteGrammar, compiler, schema_grammar
from tests.grammar_random import SchemaMaker

TEXTS = [
    ("regex", r"[a-z]{1,8}@[a-z]+\.(com|org)"),
    ("regex", r"(\d{4}-\d{2}-\d{2}|now|never)( [é-ü🚀一-龥]{2,4})?"),
    ("regex", r"(ab|a)(c|bcd)*d?"),
    ("regex", r"((a{1,3}b?){1,3}c){0,2}"),
    ("regex", ""),
    ("choice", '["yes", "no", "yes please", "né", "nè", "🚀🚀", ""]'),
    ("ebnf", 'root ::= "(" root ")" root | "x"?'),
    ("ebnf", 'root ::= item ("," item)*\nitem ::= [a-zé]{2,3} | "[" root "]" | [^a-z,\\]]'),
    ("ebnf", 'root ::= a{2,5} b\na ::= "x" | "xy"\nb ::= "y" b | "end" | ""'),
    ("ebnf", 'root ::= [a-c]* (("1" | "12"){0,3} "2")?'),
    ("json_object", ""),
]


class Followed:
    """A constraint with its matcher's grammar and its track."""

    def __init__(self, grammar: ByteGrammar) -> None:
        self.grammar = grammar
        self.compiled = compiler().compile_grammar(grammar.text)
        track = Track.of(grammar.grammar)
        assert track is not None
        self.track = track

    def start(self) -> State:
        return self.track.start

    def check_text(self, text: bytes) -> State | None:
        """Track and matcher go on alike at every byte, and may end alike; the last state."""
        matcher = xgrammar.GrammarMatcher(self.compiled)
        state: State | None = self.track.start
        assert state is not None
        assert state.may_end == matcher.is_completed(), self.grammar.text
        for i, byte in enumerate(text):
            state = state.step(byte)
            accepted = matcher.accept_token(byte)
            assert (state is not None) == accepted, (text[: i + 1], self.grammar.text)
            if state is None:
                return None
            assert state.may_end == matcher.is_completed(), (text[: i + 1], self.grammar.text)
        return state


def made_schemas(rng: random.Random, count: int) -> list[tuple[dict[str, object], ByteGrammar]]:
    """Random schemas that can be enforced, compiled."""
    found: list[tuple[dict[str, object], ByteGrammar]] = []
    while len(found) < count:
        schema = SchemaMaker(rng).root()
        try:
            whitespace = rng.choice(["fixed", "bounded"])
            found.append((schema, schema_grammar(schema, whitespace=whitespace)))
        except InvalidRequest:
            continue
    return found


def text_grammars() -> list[ByteGrammar]:
    return [ByteGrammar(Constraint(kind=kind, value=value)) for kind, value in TEXTS]


def mutated(text: bytes, rng: random.Random) -> bytes:
    """`text` with one byte left out, put in or changed."""
    at = rng.randrange(len(text) + 1)
    new = bytes([rng.choice(list(text) + list(b'"\\}]{[,: \xc3\xa9\xf0a0\n'))])
    return rng.choice(
        [text[:at] + text[at + 1 :], text[:at] + new + text[at:], text[:at] + new + text[at + 1 :]]
    )
