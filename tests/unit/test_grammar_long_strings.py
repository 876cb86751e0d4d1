"""Strings with large bounds on their length: what is generated, and what compiling them takes."""

from __future__ import annotations

import json
import random

import pytest

from radixserve.grammar import check, rules
from radixserve.grammar.track import Track
from radixserve.wire.params import Constraint
from tests.grammar_bytes import accept, schema_grammar
from tests.grammar_tracks import Followed, mutated

PIECES = ["a", "word ", "é", "🚀", '"', "\\", "\n", "\t", "\u0001", "long stretch of text " * 3]
BOUNDS = [(0, 33), (0, 40), (5, 50), (0, 100), (1, 128), (20, 300), (0, 513), (0, 2000), (40, None)]


def made(rng: random.Random, most: int) -> str:
    """A text of up to about `most` characters, some of which need an escape."""
    out = ""
    rate = rng.choice([0.0, 0.1, 0.5])
    while len(out) < most and rng.random() > 2 / most:
        out += rng.choice(PIECES[4:9] if rng.random() < rate else [*PIECES[:4], PIECES[9]])
    return out


def schema_of(low: int, high: int | None) -> dict[str, object]:
    bounds = {"minLength": low} | ({} if high is None else {"maxLength": high})
    return {"type": "string", **bounds}


@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_lengths_are_kept_to_the_character(low, high):
    rng = random.Random(low)
    both = Followed(schema_grammar(schema_of(low, high)))
    fits = accepted = 0
    for _ in range(60):
        text = made(rng, high or 120)
        quoted = json.dumps(text, ensure_ascii=False).encode()
        state = both.check_text(quoted)
        is_fit = low <= len(text) and (high is None or len(text) <= high)
        if state is not None and state.may_end:
            assert is_fit
            accepted += 1
        fits += is_fit
        both.check_text(mutated(quoted, rng))
    assert accepted > fits / 3
    full = "x" * (high or 500)
    assert both.check_text(f'"{full}"'.encode()) is not None
    if high is not None:
        assert both.check_text(f'"{full}é"'.encode()) is None
    if low:
        assert both.check_text(f'"{full[: low - 1]}"'.encode()) is None


@pytest.mark.parametrize("high", [100, 255, 500, 1000, 2000, 5000])
def test_texts_with_escapes_fit_half_of_the_length(high):
    found = Track.of(check.grammar(constraint(schema_of(0, high))))
    assert found is not None
    lines = 8 * [min(60, high // 24) * "x"]
    text = '"quoted" ' + "\n".join(lines)
    assert len(text) < high * 0.6
    assert found.start.walk(json.dumps(text).encode()) is not None


def constraint(schema: object) -> Constraint:
    return Constraint(kind="json_schema", value=json.dumps(schema))


def test_lengths_share_their_rules():
    fields = {f"p{i}": schema_of(1, 20 * i + 10) for i in range(30)}
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    assert len(check.grammar(constraint(schema)).rules) < 400


def test_counted_characters_are_written_as_all_but_some():
    """What the grammar engine counts instead of unrolling: seconds of compilation otherwise."""
    text = schema_grammar({"type": "string", "pattern": "^[a-z]{1,200}$"}).text
    assert "[^\\u0000-\\u0060\\u007B-\\U0010FFFF]{1,200}" in text
    accept(
        {"type": "string", "pattern": "^[a-zé]{2,200}$"},
        ['"ab"', f'"{"é" * 200}"'],
        ['"a"', f'"{"é" * 201}"', '"aB"', '"a\u007fa"', '"a\U0010ffff"'],
    )
    surrogate = Followed(schema_grammar({"type": "string", "maxLength": 2000}))
    assert surrogate.check_text(b'"x\xed\x9f\xbf') is not None
    assert surrogate.check_text(b'"x\xed\xa0\x80') is None
    assert surrogate.check_text(b'"x\xf4\x90') is None
    assert rules.ebnf(rules.Grammar({"root": rules.Repeat(rules.Chars(()), 0, 9)}, {})) == (
        "root ::= [^\\u0000-\\U0010FFFF]{0,9}\n"
    )
