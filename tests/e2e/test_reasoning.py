"""Reasoning before bound answers, of a model that says anything: the answer is always whole."""

from __future__ import annotations

import json

import jsonschema
import pytest

import radixserve as rs
from radixserve.engine import Engine
from radixserve.errors import InvalidRequest
from radixserve.lang.errors import Unsupported
from tests import tiny
from tests.e2e.conftest import VOCAB_ROWS, check_no_leak
from tests.tiny_tokenizer import CHATML, make_tokenizer

TEMPLATE = CHATML.replace(
    "{{ '<|im_start|>assistant\n' }}", "{{ '<|im_start|>assistant\n<think>\n' }}{# </think> #}"
)
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "word": {"type": "string", "maxLength": 6}},
    "required": ["ok", "word"],
    "additionalProperties": False,
}
OPENED = "<|im_start|>assistant\n<think>\n"


@pytest.fixture(scope="module", params=["one token", "text"])
def engine(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("thinks")
    tiny.make_model(folder, vocab=VOCAB_ROWS, max_position_embeddings=2048, eos_token_id=2)
    added = ("<think>", "</think>") if request.param == "one token" else ()
    make_tokenizer(folder, chat_template=TEMPLATE, added_tokens=added)
    settings = {"inline": True, "dtype": "float32", "threads": 1, "kv_tokens": 8192, "audit": True}
    with Engine(str(folder), **settings) as running:
        yield running
        check_no_leak(running)


def ask(engine: Engine, prompt: str = OPENED, budget: int | None = None, **sampling):
    sampling = {"temperature": 1.5, "sampling_seed": 1, **sampling}
    body = {"separate_reasoning": True, "thinking_token_budget": budget}
    return engine.generate(prompt, sampling, **body)


@pytest.mark.parametrize(
    ("budget", "logprobs", "prompt"),
    [
        (None, False, OPENED),
        (None, True, OPENED),
        (0, False, OPENED),
        (1, True, "<|im_start|>assistant\n"),
        (9, False, "<|im_start|>assistant\n"),
        (9, True, OPENED),
    ],
)
def test_answers_behind_reasoning_validate(engine, budget, logprobs, prompt):
    replies = engine.generate(
        prompt,
        {"temperature": 1.5, "sampling_seed": 3, "json_schema": SCHEMA, "max_new_tokens": 60,
         "n": 3},
        return_logprob=logprobs, separate_reasoning=True, thinking_token_budget=budget,
    )  # fmt: skip
    for reply in replies:
        jsonschema.validate(json.loads(reply["text"]), SCHEMA)
        meta = reply["meta_info"]
        assert meta["completion_tokens"] == len(reply["output_ids"]) <= 60
        assert meta["reasoning_tokens"] <= (60 if budget is None else budget)
        if logprobs:
            assert meta["output_token_logprobs_length"] == meta["completion_tokens"]
            assert meta["forced_tokens"] == 0


def test_cut_at_any_length(engine):
    """Reasoning that takes all the room leaves enough for the tag and the shortest answer."""
    seen = set()
    for room in range(34, 75, 10):
        reply = ask(engine, json_schema=SCHEMA, max_new_tokens=room, logit_bias={"300": 20})
        jsonschema.validate(json.loads(reply["text"]), SCHEMA)
        meta = reply["meta_info"]
        assert meta["completion_tokens"] <= room
        seen.add((meta["finish_reason"]["type"], meta.get("truncated", False)))
    assert seen == {("length", True)}
    with pytest.raises(InvalidRequest, match="end the reasoning"):
        ask(engine, json_schema=SCHEMA, max_new_tokens=12)


def test_without_a_constraint_the_budget_alone(engine):
    reply = ask(engine, budget=5, max_new_tokens=40, ignore_eos=True)
    assert reply["meta_info"]["reasoning_tokens"] == 5
    assert reply["text"]
    assert "</think>" not in reply["text"]
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 40}
    assert "truncated" not in reply["meta_info"]
    unbound = ask(engine, max_new_tokens=40, ignore_eos=True)
    assert unbound["text"] == ""
    assert unbound["reasoning_content"]


def test_stop_strings_hold_for_the_answer(engine):
    """A stop that the reasoning is full of ends only the answer; so does a pattern."""
    letters = {str(i): -100 for i in engine._gateway.renderer.tokenizer.eos_ids}
    full = 0
    for stop in ({"stop": [" "]}, {"stop_regex": " "}, {"stop": ["e"]}):
        reply = ask(engine, budget=30, max_new_tokens=400, logit_bias=letters, **stop)
        (mark,) = stop.values()
        full += mark[0] in reply["reasoning_content"]
        assert reply["meta_info"]["finish_reason"]["type"] == "stop"
        if "stop" in stop:
            assert mark[0] not in reply["text"].lstrip()
    assert full


def test_streams_end_in_the_same(engine):
    for sampling in ({"json_schema": SCHEMA}, {"ignore_eos": True}):
        sampling = {"temperature": 1.5, "sampling_seed": 4, "max_new_tokens": 60, **sampling}
        body = {"separate_reasoning": True, "thinking_token_budget": 12}
        whole = engine.generate(OPENED, sampling, **body)
        *_, last = engine.stream(OPENED, sampling, **body)
        for name in ("text", "reasoning_content", "output_ids"):
            assert last[name] == whole[name]


@rs.function
def judged(s):
    s += rs.user("the cat?")
    s += rs.assistant(
        rs.gen("word", max_tokens=60, regex="yes|no", temperature=1.5, seed=2,
               separate_reasoning=True, thinking_token_budget=6, field_logprobs=True)
    )  # fmt: skip
    s += rs.user("so?")
    s += rs.assistant(rs.gen("more", max_tokens=4, temperature=0))


def test_in_programs(engine):
    state = judged.run(backend=engine)
    assert state["word"] in ("yes", "no")
    meta = state.get_meta_info("word")
    assert meta["reasoning_content"]
    assert 0 < meta["reasoning_tokens"] <= 6
    found = meta["field_logprobs"][""]["alternatives"]
    assert sum(each["probability"] for each in found) == pytest.approx(1)
    assert state.get_meta_info("more")["prompt_tokens"] > meta["prompt_tokens"]


@rs.function
def thought_over(s, many):
    s += rs.user("the cat?")
    asked = rs.gen("word", max_tokens=60, regex="yes|no", n=many, thinking_token_budget=6)
    s += rs.assistant(rs.separate_reasoning(asked + ".", model_type="qwen3"))
    thoughts = s["word_reasoning_content"]
    s += rs.user(f"{thoughts if many == 1 else thoughts[1]}?")
    s += rs.assistant(rs.gen("more", max_tokens=4))


@pytest.mark.parametrize("many", [1, 2])
def test_reasoning_as_a_variable_of_its_own(engine, many):
    compiled = rs.Compiled.from_json(thought_over.compile(many=many).to_json())
    sampling = {"backend": engine, "seed": 4, "temperature": 1.5}
    plain, served = thought_over.run(many, **sampling), compiled.run(**sampling)
    for state in (plain, served):
        metas, thoughts = state.get_meta_info("word"), state["word_reasoning_content"]
        pairs = [(metas, thoughts)] if many == 1 else list(zip(metas, thoughts, strict=True))
        assert all(thought and thought == meta["reasoning_content"] for meta, thought in pairs)
        assert state.messages()[2]["content"] == f"{pairs[-1][1]}?"
        assert (state.text(), state["word"]) == (plain.text(), plain["word"])


def test_mocks_refuse_it_by_name():
    mock = rs.Mock(lambda prompt: "yes")
    with pytest.raises(Unsupported, match="separate_reasoning"):
        judged.run(backend=mock)["word"]
