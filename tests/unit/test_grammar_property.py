"""Random schemas against jsonschema, both ways: what a grammar generates validates, and values that
validate are accepted."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from fractions import Fraction
from typing import Any

import jsonschema
import pytest

from radixserve.errors import InvalidRequest
from tests.grammar_bytes import ByteGrammar, schema_grammar
from tests.grammar_random import SchemaMaker, ValueMaker, modern

KEYWORDS = sorted(SchemaMaker(random.Random(0)).keywords)


def multiple_of(validator: Any, divisor: float, value: Any, schema: Any) -> Any:
    """Of the numbers as they are written: in floats 0.58 is no multiple of 0.01."""
    if validator.is_type(value, "number") and Fraction(repr(value)) % Fraction(repr(divisor)):
        yield jsonschema.ValidationError(f"{value} is no multiple of {divisor}")


Exact = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"multipleOf": multiple_of})


def validator(schema: Any) -> jsonschema.protocols.Validator:
    return Exact(modern(schema), format_checker=Exact.FORMAT_CHECKER)


# Why a value that validates may not be generated, by the first of these words in the schema.
KINDS = {
    "uniqueItems": "the order of long unique lists",
    "oneOf": "branches that could not be told apart",
    "if": "conditions that could not be decided",
    "not": "negations wider than what is asked",
    "dependentSchemas": "conditions that could not be decided",
    "dependencies": "conditions that could not be decided",
    "dependentRequired": "the order of names that are not declared",
    "additionalProperties": "names that are not declared",
    "patternProperties": "names that are not declared",
    "propertyNames": "names that are not declared",
    "unevaluated": "what the alternatives do not declare",
}


def kind_of(schema: str) -> str:
    return next((kind for word, kind in KINDS.items() if f'"{word}' in schema), "other")


class Tally:
    """What became of the schemas of one run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.missed: list[tuple[str, str]] = []  # schema, value

    def run(self, schema: dict[str, Any], rng: random.Random, draws: int = 3) -> None:
        try:
            grammar = schema_grammar(schema, whitespace=rng.choice(["fixed", "bounded"]))
        except InvalidRequest as error:
            self._refused(error, schema)
            return
        self.counts["schemas"] += 1
        valid = validator(schema)
        self._draw(grammar, valid, rng, draws)
        self._offer(grammar, schema, valid, rng)

    def _refused(self, error: InvalidRequest, schema: Any) -> None:
        """It names keyword and place."""
        assert error.code == "unsupported_schema"
        place = re.match(r"(\S+) at #((?:/[^:]*)?): .", error.message)
        assert place, error.message
        assert place[1] == "schema" or place[2].endswith(f"/{place[1]}"), error.message
        self.counts["refused"] += 1
        self.refused[place[1]] += 1

    def _draw(self, grammar: ByteGrammar, valid: Any, rng: Any, draws: int) -> None:
        for _ in range(draws):
            text = grammar.draw(rng)
            if text is None:
                self.counts["unfinished"] += 1
                continue
            assert valid.is_valid(json.loads(text)), f"{text} against {json.dumps(valid.schema)}"
            self.counts["drawn"] += 1

    def _offer(self, grammar: ByteGrammar, schema: Any, valid: Any, rng: Any) -> None:
        """Values that fit must be accepted; no value that does not fit may be."""
        maker = ValueMaker(modern(schema), rng)
        for _ in range(12):
            value = maker.value(maker.root)
            accepted = grammar.accepts(json.dumps(value, ensure_ascii=False))
            if not valid.is_valid(value):
                assert not accepted, f"{value} against {json.dumps(valid.schema)}"
                self.counts["unfit"] += 1
                continue
            self.counts["offered"] += 1
            if not accepted:
                self.missed.append((json.dumps(schema), json.dumps(value)))

    @property
    def complete(self) -> float:
        return 1 - len(self.missed) / self.counts["offered"]

    def missed_by_kind(self) -> Counter[str]:
        return Counter(kind_of(schema) for schema, _ in self.missed)

    def check(self, schemas: int) -> None:
        assert self.counts["schemas"] > schemas
        assert self.counts["unfit"] > schemas / 2
        assert self.complete >= 0.95, self.missed_by_kind()


def test_each_keyword_alone():
    rng = random.Random(11)
    tally = Tally()
    for keyword in KEYWORDS:
        for _ in range(4):
            tally.run(SchemaMaker(rng).root(keyword), rng)
    tally.check(3 * len(KEYWORDS))


def test_keywords_in_pairs():
    rng = random.Random(12)
    tally = Tally()
    for pair in itertools.combinations(KEYWORDS, 2):
        tally.run(SchemaMaker(rng).root(*pair), rng, draws=2)
    tally.check(750)
    assert tally.counts["drawn"] > 1500


def test_nested_schemas():
    rng = random.Random(13)
    tally = Tally()
    for _ in range(250):
        tally.run(SchemaMaker(rng).root(), rng)
    tally.check(180)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10))
def test_sweep(seed):
    rng = random.Random(100 + seed)
    tally = Tally()
    for pair in itertools.combinations(KEYWORDS, 2):
        tally.run(SchemaMaker(rng).root(*pair), rng)
    for _ in range(900):
        tally.run(SchemaMaker(rng).root(), rng, draws=4)
    print(tally.counts, tally.refused, f"{tally.complete:.2%}", tally.missed_by_kind())
    tally.check(1400)
    assert tally.missed_by_kind()["other"] <= 0.002 * tally.counts["offered"]
