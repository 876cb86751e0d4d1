"""FUZZ: a small model at temperature 1.5 cannot be made to break a schema.

Nightly the same with more seeds and tokens; what it last found stands in benchmarks/README.md.
"""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal

import jsonschema
import pytest

from radixserve import Engine
from tests.schema_corpus import CORPUS, without_nullable

BATCH = 64
PROMPT = "Answer in JSON, please. The text: It was late in the year when Maria wrote. JSON:\n"


@pytest.fixture(scope="module")
def engine():
    with Engine("smollm2", kv_tokens=32768) as found:
        yield found


def violations(engine: Engine, seeds: int, tokens: int) -> tuple[list[str], Counter[str]]:
    """What is wrong with any reply, and how the replies ended."""
    jobs = [(name, seed) for name in CORPUS for seed in range(seeds)]
    wrong: list[str] = []
    ends: Counter[str] = Counter()
    for start in range(0, len(jobs), BATCH):
        some = jobs[start : start + BATCH]
        replies = engine.generate(
            [PROMPT] * len(some),
            [
                {
                    "json_schema": CORPUS[name],
                    "temperature": 1.5,
                    "max_new_tokens": tokens,
                    "sampling_seed": seed,
                }
                for name, seed in some
            ],
        )
        for (name, seed), reply in zip(some, replies):
            meta = reply["meta_info"]
            ends[meta["finish_reason"]["type"]] += 1
            if (fault := fault_of(CORPUS[name], reply["text"])) is not None:
                wrong.append(f"{name}, seed {seed}: {fault}")
            is_cut = meta["finish_reason"]["type"] == "length"
            if is_cut != meta.get("truncated", False) or len(reply["output_ids"]) > tokens:
                wrong.append(f"{name}, seed {seed}: {meta}")
    return wrong, ends


def fault_of(schema: object, text: str) -> str | None:
    """Numbers are read as decimals: in floats 7.02 is no multiple of 0.01."""
    try:
        value = json.loads(text, parse_float=Decimal)
    except ValueError as error:
        return f"{text!r} is no JSON: {error}"
    schema = json.loads(json.dumps(without_nullable(schema)), parse_float=Decimal)
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    checker = kind(schema, format_checker=kind.FORMAT_CHECKER)
    found = next(checker.iter_errors(value), None)
    return None if found is None else f"{text!r}: {found.message}"


@pytest.mark.model
def test_every_reply_validates(engine):
    wrong, ends = violations(engine, seeds=3, tokens=96)
    assert not wrong, "\n".join(wrong)
    assert ends.keys() <= {"stop", "length"}
    assert ends["stop"] > ends["length"] > 0


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_reply_validates_nightly(engine):
    wrong, ends = violations(engine, seeds=40, tokens=256)
    print(f"{sum(ends.values())} replies over {len(CORPUS)} schemas: {dict(ends)}")
    assert not wrong, "\n".join(wrong)


TEXT = "Text: {}\nJSON: "
TEXTS = ("Maria wrote late in the year.", "It rained for a week.", "They paid, and left.")


def answers(engine: Engine, prompts: dict[str, str], **sampling: object) -> dict[str, str]:
    """The output by schema."""
    texts: dict[str, str] = {}
    names = list(prompts)
    for start in range(0, len(names), BATCH):
        some = names[start : start + BATCH]
        replies = engine.generate(
            [prompts[name] for name in some],
            [{"json_schema": CORPUS[name], "max_new_tokens": 64, **sampling} for name in some],
        )
        texts |= {name: reply["text"] for name, reply in zip(some, replies)}
    return texts


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_forced_tokens_leave_the_text_as_it_is():
    """Greedy, behind two examples, as an extraction pipeline asks; without an example the model
    often spells names in other tokens than the tokenizer does, and goes on from those otherwise."""
    plain = {name: TEXT.format(TEXTS[0]) for name in CORPUS}
    with Engine("smollm2", kv_tokens=32768, dtype="float32") as engine:
        prompts = plain
        for text in TEXTS[1:]:
            shown = answers(engine, prompts, temperature=0.8, sampling_seed=1)
            prompts = {
                name: prompts[name] + shown[name] + "\n" + TEXT.format(text) for name in CORPUS
            }
        forced = answers(engine, prompts, temperature=0)
    with Engine("smollm2", kv_tokens=32768, dtype="float32", forced_tokens=False) as engine:
        sampled = answers(engine, prompts, temperature=0)
    apart = [name for name in CORPUS if forced[name] != sampled[name]]
    print(f"{len(CORPUS) - len(apart)} of {len(CORPUS)} greedy texts are the same")
    for name in apart:
        print(f"{name}\n  forced   {forced[name]!r}\n  sampled  {sampled[name]!r}")
    assert len(apart) <= 0.05 * len(CORPUS)
    assert not [name for name in CORPUS if fault_of(CORPUS[name], forced[name])]
