"""Constraints on real logits: what pushes against the mask, what shares a batch with it."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from typing import Any

import jsonschema
import pytest

from radixserve import Engine
from radixserve.errors import InvalidRequest
from tests.e2e.conftest import check_no_leak

pytestmark = pytest.mark.model

PROMPT = "A letter from Maria. In JSON:\n"
NOTE = {
    "type": "object",
    "properties": {"note": {"type": "string", "maxLength": 30}},
    "required": ["note"],
    "additionalProperties": False,
}
COUNT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(scope="module")
def engine():
    with Engine("smollm2", dtype="float32", kv_tokens=4096, threads=1, audit=True) as found:
        yield found
        check_no_leak(found)


def ask(engine: Engine, **sampling: Any) -> dict[str, Any]:
    return engine.generate(PROMPT, {"max_new_tokens": 60, "sampling_seed": 5, **sampling})


@pytest.mark.parametrize("pushed", [0, 1, 2, 3, 16])
def test_g13_g14_pushed_control_tokens_stay_out(engine, pushed):
    reply = ask(engine, json_schema=NOTE, logit_bias={str(pushed): 100}, temperature=1.0)
    jsonschema.validate(json.loads(reply["text"]), NOTE)
    body = reply["output_ids"]
    if reply["meta_info"]["finish_reason"].get("matched") is not None:
        body = body[:-1]
    assert not {*range(17)} & set(body)


def test_g13_own_stop_ids_end_nothing_before_the_grammar_may(engine):
    reply = ask(engine, json_schema=NOTE, stop_token_ids=[0, 34], logit_bias={"0": 100, "34": 100})
    jsonschema.validate(json.loads(reply["text"]), NOTE)


def test_g17_pushed_blanks_do_not_run_on(engine):
    blanks = {str(token): 100 for token in engine_ids(engine, [" ", "\n", "\t", "  "])}
    for constraint in ({"json_schema": COUNT}, {"json_object": True}):
        for whitespace in ("fixed", "bounded"):
            reply = ask(
                engine, **constraint, whitespace=whitespace, logit_bias=blanks, max_new_tokens=200
            )
            value = json.loads(reply["text"])
            assert isinstance(value, dict)
            outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', reply["text"])
            assert not re.search(r"\s{9}", outside)


def engine_ids(engine: Engine, texts: list[str]) -> list[int]:
    encode = engine._gateway.renderer.tokenizer.encode
    return [int(i) for text in texts for i in encode(text, opens=False, special=False)]


def test_g16_finished_grammars_beside_free_rows(engine):
    """Whole matches, at most four tokens, and the neighbours are as alone."""
    bound = [{"ebnf": 'root ::= "yes" | "no"'}, {"regex": r"\d{3}"}, {"json_schema": True}]
    bound[2] = {"json_schema": {"type": "boolean"}}
    wanted = ["(yes|no)", r"\d{3}", "(true|false)"]
    free = [{"temperature": 0, "ignore_eos": True, "max_new_tokens": n} for n in (3, 20, 41)]
    alone = [engine.generate(PROMPT, params)["output_ids"] for params in free]
    rows = [{"max_new_tokens": 50, "sampling_seed": 1, **each} for each in bound]
    mixed = engine.generate([PROMPT] * 6, [*rows, *free])
    for reply, pattern in zip(mixed[:3], wanted):
        assert re.fullmatch(pattern, reply["text"])
        assert reply["meta_info"]["finish_reason"]["type"] == "stop"
        assert len(reply["output_ids"]) <= 4
    assert [reply["output_ids"] for reply in mixed[3:]] == alone
    for empty in ("", "^$"):
        assert ask(engine, regex=empty)["text"] == ""


@pytest.mark.parametrize(
    "filters",
    [
        {"top_k": 1, "top_p": 0.8, "temperature": 0.01},
        {"top_p": 1e-9},
        {"top_p": 0.0},
        {"min_p": 1.0},
    ],
)
def test_p02_filters_leave_the_best_legal_token(engine, filters):
    """The grammar allows only letters that the model would never write here."""
    greedy = ask(engine, regex="[qxz]{6}", temperature=0)
    assert ask(engine, regex="[qxz]{6}", **filters)["text"] == greedy["text"]
    assert re.fullmatch("[qxz]{6}", greedy["text"])
    for off in (0, -1, 10**6):
        assert re.fullmatch("[qxz]{6}", ask(engine, regex="[qxz]{6}", top_k=off)["text"])


def test_every_logprob_is_there_and_none_is_forced(engine):
    plain = ask(engine, json_schema=NOTE, temperature=0)
    scored = engine.generate(
        PROMPT,
        {"max_new_tokens": 60, "json_schema": NOTE, "temperature": 0},
        return_logprob=True,
    )
    meta = scored["meta_info"]
    assert scored["text"] == plain["text"]
    assert meta["forced_tokens"] == 0 < plain["meta_info"]["forced_tokens"]
    entries = meta["output_token_logprobs"]
    assert [token for _, token, _ in entries] == scored["output_ids"]
    assert all(value <= 0 for value, _, _ in entries)


def test_q05_retraction_keeps_grammars_penalties_and_seeds(start):
    """A pool that holds a few of the requests gives what a large one gives."""
    prompts = [f"{i}: and so on" for i in range(8)]
    kinds = [
        {"json_schema": NOTE},
        {"json_schema": NOTE, "frequency_penalty": 1.0, "presence_penalty": 0.5},
        {"regex": "([a-z]{3,9} ){12}", "repetition_penalty": 1.3},
        {"temperature": 0, "ignore_eos": True},
        {"json_object": True},
        {"choice": ["one thing", "one other thing"]},
        {"regex": "(ab|cd)*"},
        {"json_schema": COUNT},
    ]
    params = [{"max_new_tokens": 90, "sampling_seed": 7, **kind} for kind in kinds]
    found, retractions = [], []
    for pool in (8192, 256, 192, 144):
        with start(kv_tokens=pool, reserve=0.0) as engine:
            engine.generate(prompts, params)  # compiles, so that the next ones run at once
            engine.flush_cache()
            found.append([reply["output_ids"] for reply in engine.generate(prompts, params)])
            retractions.append(engine.gauges().retractions)
            check_no_leak(engine)
    assert found[1:] == found[:1] * 3
    assert retractions[0] == 0 < max(retractions[1:])


BOMBS = [
    {"json_schema": {"enum": [f"value {i}" for i in range(4000)]}},
    {"regex": "((a{1,100}){1,100}){1,100}"},
    {"ebnf": 'root ::= "" | "(" root ")" | root root'},
    {"json_schema": {"type": "string", "maxLength": 65536}},
    {"json_schema": {"type": "array", "items": {"type": "integer"}, "maxItems": 10000}},
    {"json_schema": {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}},
                     "$ref": "#/$defs/a"}},
]  # fmt: skip


def test_g19_g20_bombs_beside_four_streams(engine):
    """Each is answered or refused in time, and the streams go on meanwhile."""
    gaps: list[float] = []

    def stream(number: int) -> None:
        last = None
        for _ in engine.stream(
            f"{number} tales:", {"max_new_tokens": 300, "temperature": 0, "ignore_eos": True}
        ):
            now = time.monotonic()
            if last is not None:
                gaps.append(now - last)
            last = now

    streams = [threading.Thread(target=stream, args=(i,)) for i in range(4)]
    for thread in streams:
        thread.start()
    for bomb in BOMBS:
        began = time.monotonic()
        with contextlib.suppress(InvalidRequest):
            reply = ask(engine, **bomb, max_new_tokens=24)
            assert len(reply["output_ids"]) <= 24
        assert time.monotonic() - began < 60
    for thread in streams:
        thread.join(120)
    assert not any(thread.is_alive() for thread in streams)
    assert max(gaps) < 10, "generous: other tests may share the machine"
