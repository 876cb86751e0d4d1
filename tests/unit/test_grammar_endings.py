"""Endings at every length, on the embedded model's vocabulary and random legal tokens."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator

import jsonschema
import numpy as np
import pytest

from radixserve.config.schema import GrammarConfig
from radixserve.errors import InvalidRequest
from radixserve.grammar.check import check
from radixserve.grammar.gate import Gate
from radixserve.grammar.pool import Matcher
from radixserve.guide import Taken
from radixserve.text.tokenizer import Tokenizer
from radixserve.wire.messages import Generate, Setup
from radixserve.wire.params import Constraint, SamplingParams
from tests.fake_executor import legal
from tests.schema_corpus import CORPUS, without_nullable

pytestmark = pytest.mark.model
NAMES = [name for name in CORPUS if name.startswith(("leaf", "whole", "real"))]
EVERY = {"whole: ref", "leaf: date-time", "leaf: enum", "real: shape", "real: point"}
BEYOND = 40  # lengths from the shortest possible on


class Vocabulary:
    """The gate as the engine has it, and the tokens' bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.bytes = list(tokenizer.token_bytes)
        self.stops = sorted(tokenizer.eos_ids)
        setup = Setup(
            config=b"",
            token_bytes=self.bytes,
            stop_ids=self.stops,
            tokenizer=tokenizer.to_engine(),
        )
        self.gate = Gate(GrammarConfig(compile_seconds=60), setup, len(self.bytes), threads=1)
        self._count = 0

    def matcher(self, schema: object) -> Matcher:
        constraint = check(Constraint(kind="json_schema", value=json.dumps(schema)))
        self._count += 1
        self.gate.hold(
            Generate(
                rid=str(self._count), prompt=b"", params=SamplingParams(), constraint=constraint
            )
        )
        while not (found := self.gate.ready()):
            time.sleep(0.001)
        guide = found[0][1]
        assert isinstance(guide, Matcher), guide
        return guide

    def text(self, ids: list[int]) -> str:
        return b"".join(self.bytes[token] for token in ids if token not in self.stops).decode()


@pytest.fixture(scope="module")
def vocabulary(smollm2) -> Iterator[Vocabulary]:
    found = Vocabulary(Tokenizer.load(smollm2))
    yield found
    found.gate.close()


def wander(
    matcher: Matcher, room: int, stops: list[int], rng: random.Random
) -> tuple[list[int], int, Taken]:
    """An output of random legal tokens: its ids, how many were forced, how it ended."""
    row = np.zeros(matcher.row_words, np.int32)
    taken = matcher.begin(room, one_by_one=False)
    ids, forced = list(taken.ids), taken.forced
    while taken.close is None and len(ids) < room:
        matcher.fill(row)
        token = drawn(row, stops, rng)
        taken = matcher.take(token, room - len(ids) - 1)
        assert taken.error is None
        ids += taken.ids
        forced += taken.forced
    return ids, forced, taken


def drawn(row: np.ndarray, stops: list[int], rng: random.Random) -> int:
    """A legal token; an end token only where nothing else is."""
    for _ in range(20):
        token = rng.randrange(32 * len(row))
        if row[token >> 5] >> (token & 31) & 1 and token not in stops:
            return token
    ways = legal(row, 32 * len(row))
    return rng.choice([token for token in ways if token not in stops] or ways)


def needed(matcher: Matcher) -> int:
    """The number that a refusal for want of room names."""
    try:
        matcher.begin(0, one_by_one=False)
    except InvalidRequest as error:
        found = re.search(r"takes (\d+) tokens", error.message)
        assert found is not None
        return int(found[1])
    raise AssertionError("an empty output is no JSON")


def check_lengths(vocabulary: Vocabulary, name: str, step: int) -> None:
    schema = CORPUS[name]
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    checker = kind(without_nullable(schema), format_checker=kind.FORMAT_CHECKER)
    least = needed(vocabulary.matcher(schema))
    rng = random.Random(name)
    for room in range(least, least + BEYOND + 1, step):
        ids, forced, taken = wander(vocabulary.matcher(schema), room, vocabulary.stops, rng)
        assert 0 <= forced <= len(ids) <= room
        assert taken.close is not None or len(ids) == room
        value = json.loads(vocabulary.text(ids))
        if "cents" not in name:  # which floats cannot say
            checker.validate(value)


@pytest.mark.parametrize("name", NAMES)
def test_lengths_end_in_a_valid_text(vocabulary, name):
    check_lengths(vocabulary, name, 1 if name in EVERY else 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CORPUS if not name.startswith("items")])
def test_every_length_ends_in_a_valid_text(vocabulary, name):
    check_lengths(vocabulary, name, 1)
