"""Choices scored behind a prompt, over /generate."""

from __future__ import annotations

import pytest

from tests.api.scripted import ScriptedGateway, logprob
from tests.api.talk import answered, ask, error_of


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer)


def sent(gateway):
    return [memoryview(request.prompt).cast("i").tolist() for request in gateway.requests]


def choose(gateway, choices, parts=({"text": "Is it"},), **more):
    asked = {"choices": choices, **more}
    return answered(gateway, "/generate", {"input": [*parts, asked]})


def test_choices_are_scored_behind_their_prompt(gateway, renderer):
    reply = choose(gateway, [" yes", " no", " yes sir", " yes"], unconditional=False)
    prompt = reply["meta_info"]["prompt"]["ids"]
    assert reply["meta_info"]["prompt_tokens"] == len(prompt)
    assert [c["text"] for c in reply["choices"]] == [" yes", " no", " yes sir", " yes"]
    for choice in reply["choices"]:
        assert renderer.tokenizer.decode(prompt + choice["ids"]) == "Is it" + choice["text"]
        assert choice["logprobs"] == [logprob(token) for token in choice["ids"]]
        assert "unconditional_logprobs" not in choice
    # One request for each distinct choice, which generates nothing.
    assert len(gateway.requests) == 3
    for request in gateway.requests:
        assert request.params.max_new_tokens == 0
        assert request.prompt_logprobs == 0
        assert request.prompt_logprobs_start == len(prompt)
    assert sorted(sent(gateway)) == sorted(
        {tuple(prompt + c["ids"]): prompt + c["ids"] for c in reply["choices"]}.values()
    )


def test_unconditional_scores_need_something_in_front(no_bos_renderer):
    gateway = ScriptedGateway(no_bos_renderer)
    choices = choose(gateway, [" yes", " yes sir"], unconditional=True)["choices"]
    assert choices[0]["unconditional_logprobs"] == [None] * len(choices[0]["ids"])
    scored = [logprob(token) for token in choices[1]["ids"][1:]]
    assert choices[1]["unconditional_logprobs"] == [None, *scored]


@pytest.mark.parametrize("fixture", ["bos_renderer", "renderer"])
def test_unconditional_scores_stand_behind_bos(request, fixture):
    renderer = request.getfixturevalue(fixture)
    gateway = ScriptedGateway(renderer)
    choices = choose(gateway, [" yes", " yes sir"], unconditional=True)["choices"]
    bos = renderer.tokenizer.bos_id
    for choice in choices:
        assert choice["unconditional_logprobs"] == [logprob(token) for token in choice["ids"]]
        assert [bos, *choice["ids"]] in sent(gateway)
    prompts = [row for row in sent(gateway) if row not in [[bos, *c["ids"]] for c in choices]]
    assert all((row[0] == bos) is (fixture == "bos_renderer") for row in prompts)
    assert len(prompts) == 2


def test_choices_at_the_start_of_a_prompt(gateway):
    choices = choose(gateway, ["yes", "yes sir"], parts=())["choices"]
    assert choices[0]["logprobs"] == [None] * len(choices[0]["ids"])
    assert choices[1]["logprobs"][0] is None
    assert choices[1]["logprobs"][1:] == [logprob(token) for token in choices[1]["ids"][1:]]


def test_an_empty_choice_has_no_scores(gateway):
    assert choose(gateway, [""])["choices"] == [{"text": "", "ids": [], "logprobs": []}]


def test_too_many_choices_are_refused(renderer):
    parts = [{"text": "the"}, {"choices": ["a"] * 1025}]
    error = error_of(ask(ScriptedGateway(renderer), "/generate", {"input": parts}), 400)
    assert error["param"] == "input[1].choices"
