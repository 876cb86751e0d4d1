"""Field confidence on real logits: against a brute-force scoring, streamed and not, in chat."""

from __future__ import annotations

import json
import math

import pytest
import torch

from radixserve.engine import Engine
from tests import tiny
from tests.e2e.conftest import VOCAB_ROWS, check_no_leak
from tests.tiny_tokenizer import make_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"enum": ["positive", "negative", "neutral"]},
        "ok": {"type": "boolean"},
        "size": {"enum": [1, 12, 3]},
        "name": {"type": "string", "maxLength": 5},
        "list": {"type": "array", "items": {"enum": ["é", "e", None]}, "maxItems": 2},
    },
    "required": ["label", "ok", "size", "name", "list"],
    "additionalProperties": False,
}
PROMPT = "the quick brown fox: "


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sure")
    tiny.make_model(folder, vocab=VOCAB_ROWS, max_position_embeddings=1024, eos_token_id=2)
    return make_tokenizer(folder)


@pytest.fixture(scope="module")
def engine(folder):
    settings = {"inline": True, "dtype": "float32", "threads": 1, "kv_tokens": 4096, "audit": True}
    with Engine(str(folder), **settings) as running:
        yield running
        check_no_leak(running)


@pytest.fixture(scope="module")
def model(folder):
    return tiny.reference(folder)


def joint(model, ids: list[int], start: int) -> float:
    """Log-probability of ids[start:] behind the ids before, by teacher forcing."""
    scores = torch.log_softmax(tiny.reference_logits(model, ids).float(), dim=-1)
    return sum(float(scores[i - 1, ids[i]]) for i in range(start, len(ids)))


def tokens_of(engine: Engine, ids: list[int]) -> list[bytes]:
    return [engine._gateway.renderer.tokenizer.bytes_of(token) for token in ids]


def brute_force(engine, model, reply, values, place) -> list[float]:
    """The scores of the values at `place` (start, end) of the reply's text."""
    tokenizer = engine._gateway.renderer.tokenizer
    text, (start, end) = reply["text"].encode(), place
    spelt = [json.dumps(value, ensure_ascii=False).encode() for value in values]
    wholes = [
        text[:start] + each + (text[end : end + 1] if is_begin(each, spelt) else b"")
        for each in spelt
    ]
    columns = zip(*(text[:start] + each for each in spelt))
    shared = next(i for i, column in enumerate(columns) if len(set(column)) > 1)
    kept, size = [], 0
    for token, piece in zip(reply["output_ids"], tokens_of(engine, reply["output_ids"])):
        if size + len(piece) > shared:
            break
        kept.append(token)
        size += len(piece)
    head = tokenizer.encode(PROMPT, opens=True, special=True).tolist() + kept
    scores = []
    for whole in wholes:
        tail = tokenizer.encode(whole[size:].decode(), opens=False, special=False).tolist()
        scores.append(joint(model, head + tail, len(head)))
    return scores


def is_begin(one: bytes, others: list[bytes]) -> bool:
    return any(other != one and other.startswith(one) for other in others)


def softmax(scores: list[float]) -> list[float]:
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("seed", range(4))
def test_alternatives_equal_a_brute_force_scoring(engine, model, seed):
    sampling = {"temperature": 1.5, "sampling_seed": seed, "json_schema": SCHEMA}
    reply = engine.generate(PROMPT, {**sampling, "max_new_tokens": 150, "field_logprobs": True})
    fields = reply["meta_info"]["field_logprobs"]
    value = json.loads(reply["text"])
    assert {"", "/label", "/ok", "/size", "/name", "/list"} <= fields.keys()
    assert len(fields) == 6 + len(value["list"])
    text = reply["text"]
    for pointer, values in (
        ("/label", ["negative", "neutral", "positive"]),
        ("/ok", [False, True]),
        ("/size", [1, 12, 3]),
    ):
        found = fields[pointer]["alternatives"]
        assert [each["value"] for each in found] == values
        assert sum(each["probability"] for each in found) == pytest.approx(1, abs=1e-3)
        name = json.dumps(pointer[1:]) + ": "
        start = text.encode().index(name.encode()) + len(name)
        end = start + len(json.dumps(value[pointer[1:]]))
        scores = brute_force(engine, model, reply, values, (start, end))
        assert [each["logprob"] for each in found] == pytest.approx(scores, abs=1e-3)
        assert [each["probability"] for each in found] == pytest.approx(softmax(scores), abs=1e-3)
    assert "alternatives" not in fields["/name"]
    for i in range(len(value["list"])):
        found = fields[f"/list/{i}"]["alternatives"]
        assert [each["value"] for each in found] == ["e", "é", None]
        assert sum(each["probability"] for each in found) == pytest.approx(1, abs=1e-3)


def test_what_was_forced_counts_nothing(engine, model):
    """The sum over the whole is that of the tokens that were sampled, by the model's own logits."""
    sampling = {"temperature": 1.0, "sampling_seed": 2, "json_schema": SCHEMA}
    reply = engine.generate(PROMPT, {**sampling, "max_new_tokens": 150, "field_logprobs": True})
    meta = reply["meta_info"]
    assert meta["forced_tokens"] > 5
    slow = engine.generate(PROMPT, {**sampling, "max_new_tokens": 150, "field_logprobs": True},
                           return_logprob=True)  # fmt: skip
    assert slow["text"] == reply["text"]
    assert "output_token_logprobs" not in meta
    for pointer, found in meta["field_logprobs"].items():
        other = slow["meta_info"]["field_logprobs"][pointer]
        assert found["tokens"] == other["tokens"]
        assert found["logprob"] == pytest.approx(other["logprob"], abs=1e-3)
    whole = meta["field_logprobs"][""]
    assert 5 <= whole["tokens"] <= meta["completion_tokens"] - meta["forced_tokens"]
    entries = [entry[0] for entry in slow["meta_info"]["output_token_logprobs"]]
    assert sum(entries) < whole["logprob"] < 0


def test_choices_and_streams(engine, model):
    words = ["yes", "yes, it is", "no"]
    sampling = {"temperature": 0, "choice": words, "field_logprobs": True}
    reply = engine.generate(PROMPT, sampling)
    *early, last = engine.stream(PROMPT, sampling)
    told = [each["meta_info"]["field_logprobs"][""] for each in (reply, last)]
    assert told[0]["logprob"] == pytest.approx(told[1]["logprob"], abs=1e-3)
    assert all("field_logprobs" not in event["meta_info"] for event in early)
    found = {each["value"]: each["logprob"] for each in told[0]["alternatives"]}
    tokenizer = engine._gateway.renderer.tokenizer
    head = tokenizer.encode(PROMPT, opens=True, special=True).tolist()
    for word in words:
        tail = tokenizer.encode(word, opens=False, special=False).tolist()
        tail += [2] if word == "yes" else []
        assert found[word] == pytest.approx(joint(model, head + tail, len(head)), abs=1e-3)


@pytest.mark.parametrize("limit", [59, 62, 70])
def test_the_length_limit_leaves_fields(engine, limit):
    """What it brought to an end was not the model's choice, and is not told as one that is sure."""
    sampling = {"json_schema": SCHEMA, "field_logprobs": True, "sampling_seed": 1}
    sampling |= {"max_new_tokens": limit, "temperature": 1.5}
    reply = engine.generate(PROMPT, sampling)
    fields = reply["meta_info"]["field_logprobs"]
    assert fields.keys() >= {"", "/label", "/ok", "/size", "/name", "/list"}
    assert all(field["logprob"] < 0 for field in fields.values() if field["tokens"])
    known = engine.generate(PROMPT, sampling, return_logprob=True)
    assert known["text"] == reply["text"]
    for name, field in known["meta_info"]["field_logprobs"].items():
        assert fields[name]["logprob"] == pytest.approx(field["logprob"], abs=1e-3), name


def test_nothing_is_left_when_the_client_goes(engine):
    events = engine.stream(PROMPT, {"json_schema": SCHEMA, "field_logprobs": True})
    next(events)
    events.close()
