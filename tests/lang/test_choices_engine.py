"""select() on a real model: exact scores wherever the prompt ends (cases.md F02, F04)."""

import math

import pytest

import radixserve.lang as sgl

PROMPTS = ["the quick brown", "the quick bro", "the quick brown ", "", "天气", "a\n"]
CHOICES = {
    "words": [" fox", " dog", " lazy dog"],
    "prefixes": ["a", "ab", "abc", "abcd"],
    "numbers": ["1", "10", "100"],
    "endings": [" yes", " yes!", " yes?"],
    "merging": ["wn", "wn fox", "ther"],
    "equal": ["same", "same", "other"],
    "one": ["only"],
    "other scripts": ["春天", "夏天", "🙂", "🙃", "é"],
}


@sgl.function
def pick(s, prompt, choices, method=sgl.probability):
    s += prompt
    s += sgl.select("x", choices, choices_method=method)


def scored_by_generate(engine, ids, count):
    """Log-probabilities of the last `count` of `ids`, by another route."""
    reply = engine.generate(
        input_ids=ids,
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=len(ids) - count,
    )
    return [entry[0] for entry in reply["meta_info"]["input_token_logprobs"][-count:]]


@pytest.mark.parametrize("prompt", [each for each in PROMPTS if each], ids=repr)
@pytest.mark.parametrize("kind", CHOICES)
def test_scores_are_those_of_the_choice_as_text_at_that_place(tiny_engine, prompt, kind):
    choices = CHOICES[kind]
    state = pick.run(prompt, choices, backend=tiny_engine)
    meta = state.get_meta_info("x")
    encode = tiny_engine._gateway.renderer.encode_text
    rows = [list(map(int, encode(prompt + choice))) for choice in choices]
    alone = list(map(int, encode(prompt)))
    shared = 0
    for column in zip(alone, *rows):
        if len(set(column)) > 1:
            break
        shared += 1
    for row, entry in zip(rows, meta["choices"], strict=True):
        assert entry["ids"] == row[shared:]
        if shared:
            expected = scored_by_generate(tiny_engine, row, len(row) - shared)
            assert entry["logprobs"] == pytest.approx(expected, abs=1e-4)
    assert sum(meta["scores"]) == pytest.approx(1)
    assert state.text() == prompt + state["x"]


def test_the_start_of_a_prompt_has_no_score(tiny_engine):
    with pytest.raises(sgl.ProgramError, match="start of a prompt"):
        pick.run("", ["a", "b"], backend=tiny_engine)


@pytest.mark.parametrize("count", [1, 40, pytest.param(300, marks=pytest.mark.slow)])
def test_many_choices_are_one_request_and_leave_nothing(tiny_engine, count):
    before = tiny_engine.gauges()
    choices = [f" choice {i}" for i in range(count)]
    state = pick.run("the quick brown fox", choices, backend=tiny_engine)
    assert state["x"] in choices
    meta = state.get_meta_info("x")
    assert len(meta["scores"]) == count
    assert sum(meta["scores"]) == pytest.approx(1)
    assert 0 <= meta["outside"] <= 1
    assert state["x"] == choices[meta["scores"].index(max(meta["scores"]))]
    gauges = tiny_engine.gauges()
    assert (gauges.running, gauges.waiting, gauges.locked_tokens) == (0, 0, 0)
    assert gauges.kv_tokens == before.kv_tokens == gauges.free_tokens + gauges.evictable_tokens


@pytest.mark.parametrize(
    "method",
    [
        sgl.token_length_normalized,
        sgl.greedy_token_selection,
        sgl.unconditional_likelihood_normalized,
        sgl.probability,
    ],
    ids=lambda method: method.name,
)
def test_warm_and_cold_pick_the_same(tiny_engine, method):
    tiny_engine.flush_cache()
    prompt, choices = "the lazy dog and the quick brown", CHOICES["words"]
    cold = pick.run(prompt, choices, method, backend=tiny_engine)
    warm = pick.run(prompt, choices, method, backend=tiny_engine)
    assert cold["x"] == warm["x"]
    assert warm.get_meta_info("x")["scores"] == pytest.approx(
        cold.get_meta_info("x")["scores"], abs=1e-4
    )
    assert warm.get_meta_info("x")["cached_tokens"] > 0


def test_the_mass_outside_is_what_single_tokens_leave(tiny_engine):
    tokenizer = tiny_engine._gateway.renderer.tokenizer
    texts = {tokenizer.decode([token]): token for token in range(3, 448)}
    texts = {text: token for text, token in texts.items() if text and "\ufffd" not in text}
    encode = tiny_engine._gateway.renderer.encode_text
    prompt = "the quick brown fox"
    known = list(map(int, encode(prompt)))
    single = [t for t in texts if list(map(int, encode(prompt + t))) == [*known, texts[t]]][:50]
    state = pick.run(prompt, single, backend=tiny_engine)
    meta = state.get_meta_info("x")
    mass = sum(math.exp(sum(each["logprobs"])) for each in meta["choices"])
    assert meta["outside"] == pytest.approx(1 - mass, abs=1e-6)
    assert 0 < mass <= 1
