"""Random schemas against jsonschema, both ways: what a grammar generates validates, and values that
validate are accepted."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from typing import Any

import jsonschema
import pytest

from radixserve.errors import InvalidRequest
from tests.grammar_bytes import ByteGrammar, schema_grammar
from tests.grammar_random import SchemaMaker, ValueMaker

KEYWORDS = sorted(SchemaMaker(random.Random(0)).keywords)


def validator(schema: Any) -> jsonschema.Draft202012Validator:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(schema, format_checker=checker)


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
            self.counts["refused"] += 1
            self.refused[error.message.split(" at ")[0]] += 1
            return
        self.counts["schemas"] += 1
        valid = validator(schema)
        self._draw(grammar, schema, valid, rng, draws)
        self._offer(grammar, schema, valid, rng)

    def _draw(self, grammar: ByteGrammar, schema: Any, valid: Any, rng: Any, draws: int) -> None:
        for _ in range(draws):
            text = grammar.draw(rng)
            if text is None:
                self.counts["unfinished"] += 1
                continue
            assert valid.is_valid(json.loads(text)), f"{text} against {json.dumps(schema)}"
            self.counts["drawn"] += 1

    def _offer(self, grammar: ByteGrammar, schema: Any, valid: Any, rng: Any) -> None:
        maker = ValueMaker(schema, rng)
        for _ in range(12):
            value = maker.value(schema)
            if not valid.is_valid(value):
                continue
            self.counts["offered"] += 1
            if not grammar.accepts(json.dumps(value, ensure_ascii=False)):
                self.missed.append((json.dumps(schema), json.dumps(value)))

    @property
    def complete(self) -> float:
        return 1 - len(self.missed) / self.counts["offered"]


def test_each_keyword_alone():
    rng = random.Random(11)
    tally = Tally()
    for keyword in KEYWORDS:
        for _ in range(4):
            tally.run(SchemaMaker(rng).root(keyword), rng)
    assert tally.counts["schemas"] > 3 * len(KEYWORDS)
    assert tally.complete >= 0.95, tally.missed[:5]


def test_keywords_in_pairs():
    rng = random.Random(12)
    tally = Tally()
    for pair in itertools.combinations(KEYWORDS, 2):
        tally.run(SchemaMaker(rng).root(*pair), rng, draws=2)
    assert tally.counts["schemas"] > 300
    assert tally.counts["drawn"] > 600
    assert tally.complete >= 0.95, tally.missed[:5]


def test_nested_schemas():
    rng = random.Random(13)
    tally = Tally()
    for _ in range(250):
        tally.run(SchemaMaker(rng).root(), rng)
    assert tally.counts["schemas"] > 180
    assert tally.complete >= 0.95, tally.missed[:5]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_sweep(seed):
    rng = random.Random(100 + seed)
    tally = Tally()
    for pair in itertools.product(KEYWORDS, repeat=2):
        tally.run(SchemaMaker(rng).root(*pair), rng)
    for _ in range(2500):
        tally.run(SchemaMaker(rng).root(), rng, draws=4)
    print(tally.counts, tally.refused)
    assert tally.complete >= 0.95, tally.missed[:20]
