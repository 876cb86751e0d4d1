"""Text completions over a scripted gateway."""

from __future__ import annotations

import itertools

import pytest
from openai.types import Completion

from radixserve.api.openai.logprobs import CompletionLogprobs
from tests.api.scripted import ScriptedGateway, logprob
from tests.api.talk import COMPLETIONS, answered, ask, error_of, streamed, text_choices

OUTPUTS = ("Paris is 🦙", "Berlin")
PROMPT = "the cat é"


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, OUTPUTS)


def ids_of(renderer, text):
    return renderer.tokenizer.encode(text, opens=False, special=True).tolist()


def complete(gateway, **fields):
    return answered(gateway, COMPLETIONS, {"prompt": PROMPT, **fields})


def test_a_reply_has_every_field_that_strict_clients_want(gateway):
    reply = complete(gateway)
    Completion.model_validate(reply, strict=True)
    assert reply["object"] == "text_completion"
    (choice,) = reply["choices"]
    assert choice == {"index": 0, "text": OUTPUTS[0], "logprobs": None, "finish_reason": "stop"}


@pytest.mark.parametrize("n", [1, 2])
def test_a10_every_form_of_prompt(gateway, renderer, n):
    ids = ids_of(renderer, PROMPT)
    other = ids_of(renderer, "dog")
    forms = [PROMPT, ids, [PROMPT, "dog"], [ids, other], [PROMPT, other]]
    for form in forms:
        before = len(gateway.requests)
        reply = complete(gateway, prompt=form, n=n)
        expected = [ids] if form in (PROMPT, ids) else [ids, other]
        sent = gateway.requests[before:]
        assert [memoryview(r.prompt).cast("i").tolist() for r in sent] == expected
        assert len({r.rid for r in sent}) == len(expected)
        assert [c["index"] for c in reply["choices"]] == list(range(n * len(expected)))
        assert [c["text"] for c in reply["choices"]] == list(OUTPUTS[:n]) * len(expected)
        assert reply["usage"]["prompt_tokens"] == sum(map(len, expected))


def test_cached_tokens_are_those_of_the_first_admission_of_each_prompt(gateway, renderer):
    ids = ids_of(renderer, PROMPT)
    complete(gateway, prompt=ids)
    usage = complete(gateway, prompt=[ids, ids_of(renderer, "dog")], n=2)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == len(ids) - 1


@pytest.mark.parametrize(
    ("echo", "logprobs", "stop", "several"),
    list(itertools.product((False, True), (None, 0, 2), (None, ["is 🦙z", "zzz"]), (False, True))),
)
def test_s12_a_stream_adds_up_to_the_whole(gateway, echo, logprobs, stop, several):
    prompt = [PROMPT, "dog"] if several else PROMPT
    body = {"prompt": prompt, "n": 2, "echo": echo, "logprobs": logprobs, "stop": stop}
    whole = answered(gateway, COMPLETIONS, body)
    events = streamed(gateway, COMPLETIONS, body)
    choices = text_choices(events)
    assert choices.keys() == set(range(4 if several else 2))
    for choice in whole["choices"]:
        mine = choices[choice["index"]]
        assert (mine["text"], mine["finish_reason"]) == (choice["text"], choice["finish_reason"])
        columns = choice["logprobs"]
        if logprobs is None:
            assert columns is None
            assert mine["logprobs"]["tokens"] == []
            continue
        assert mine["logprobs"] == columns
        assert len({len(column) for column in columns.values()}) == 1
        assert "".join(columns["tokens"]) == choice["text"]
        for token, offset in zip(columns["tokens"], columns["text_offset"], strict=True):
            assert choice["text"][offset : offset + len(token)] == token


@pytest.mark.parametrize("delay", [0, 2, 9])
@pytest.mark.parametrize("stream", [False, True])
def test_sisters_wait_for_the_scores_of_their_echo(renderer, delay, stream):
    """With a delay of 9 the second and third have finished before the first score comes; with 2
    they do between the pieces."""
    gateway = ScriptedGateway(renderer, ("Paris is", "Berlin", ""))
    gateway.score_delay = delay
    body = {"prompt": [PROMPT, "the dog sat"], "n": 3, "echo": True, "logprobs": 1}
    for _ in ("cold", "warm"):
        if stream:
            choices = text_choices(streamed(gateway, COMPLETIONS, body))
        else:
            choices = dict(enumerate(answered(gateway, COMPLETIONS, body)["choices"]))
        assert choices.keys() == set(range(6))
        for index, choice in choices.items():
            text = body["prompt"][index // 3]
            ids = ids_of(renderer, text)
            said = [*ids_of(renderer, gateway.outputs[index % 3]), 2]
            assert choice["text"] == text + gateway.outputs[index % 3]
            scores = [logprob(token) for token in [*ids[1:], *said]]
            assert choice["logprobs"]["token_logprobs"] == [None, *scores]
            assert choice["logprobs"]["top_logprobs"][0] is None


def test_the_columns_of_an_echo_are_made_once(renderer):
    """Whatever the number of choices. The candidates of a scored token are spelt one by one."""
    spelt = []
    inner = renderer.tokenizer.bytes_of

    def counted(token, skip_special=True):
        spelt.append(token)
        return inner(token, skip_special)

    renderer.tokenizer.bytes_of = counted
    try:
        body = {"prompt": "the cat " * 40, "echo": True, "logprobs": 5, "max_tokens": 0}
        counts = []
        for n in (1, 8):
            spelt.clear()
            answered(ScriptedGateway(renderer), COMPLETIONS, {**body, "n": n})
            counts.append(len(spelt))
    finally:
        del renderer.tokenizer.bytes_of
    assert counts[1] < counts[0] + 20


def test_a10_logprobs_have_a_column_entry_for_each_token(gateway, renderer):
    reply = complete(gateway, logprobs=2)
    columns = reply["choices"][0]["logprobs"]
    ids = [*ids_of(renderer, OUTPUTS[0]), 2]
    assert reply["usage"]["completion_tokens"] == len(columns["tokens"]) == len(ids)
    assert columns["token_logprobs"] == [logprob(token) for token in ids]
    for token, text, best in zip(ids, columns["tokens"], columns["top_logprobs"], strict=True):
        assert best[text] == logprob(token)
        assert 1 <= len(best) <= 3


def test_p07_candidates_of_one_text_collide_by_rule(renderer):
    a, b = ids_of(renderer, "a")[0], ids_of(renderer, "b")[0]
    columns = CompletionLogprobs(renderer.tokenizer, 3).columns(
        ["a"], [-2.0], [[b, a, b]], [[-0.5, -1.0, -3.0]]
    )
    assert columns["top_logprobs"] == [{"b": -0.5, "a": -2.0}]


def test_p07_parts_of_a_character_are_keyed_by_their_bytes(renderer):
    first, *_ = ids_of(renderer, "🦙")
    exact = renderer.tokenizer.bytes_of(first)
    columns = CompletionLogprobs(renderer.tokenizer, 1).columns([""], [-0.5], [[first]], [[-0.5]])
    key = "bytes:" + "".join(f"\\x{byte:02x}" for byte in exact)
    assert columns["top_logprobs"] == [{key: -0.5, "": -0.5}]


def test_a10_logprobs_zero_tells_the_chosen_only(gateway):
    columns = complete(gateway, logprobs=0)["choices"][0]["logprobs"]
    for text, value, best in zip(
        columns["tokens"], columns["token_logprobs"], columns["top_logprobs"], strict=True
    ):
        assert best == {text: value}


def test_a10_echo_without_output_is_the_prompt_with_its_scores(gateway, renderer):
    reply = complete(gateway, echo=True, max_tokens=0, logprobs=1)
    (choice,) = reply["choices"]
    ids = ids_of(renderer, PROMPT)
    assert choice["text"] == PROMPT
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 0
    columns = choice["logprobs"]
    assert columns["token_logprobs"] == [None, *(logprob(token) for token in ids[1:])]
    assert columns["top_logprobs"][0] is None
    assert "".join(columns["tokens"]) == PROMPT


def test_a10_echo_of_one_token_asks_for_no_scores(gateway):
    (choice,) = complete(gateway, prompt=[80], echo=True, max_tokens=1, logprobs=0)["choices"]
    assert gateway.requests[0].prompt_logprobs is None
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert len(choice["logprobs"]["tokens"]) == 2


def test_echo_without_logprobs_asks_for_no_scores(gateway):
    assert complete(gateway, echo=True, max_tokens=0)["choices"][0]["text"] == PROMPT
    assert gateway.requests[0].prompt_logprobs is None


def test_echo_leaves_out_a_bos_that_the_client_did_not_write(bos_renderer):
    gateway = ScriptedGateway(bos_renderer, OUTPUTS)
    for prompt in (PROMPT, "<|endoftext|>" + PROMPT):
        (choice,) = complete(gateway, prompt=prompt, echo=True, logprobs=0)["choices"]
        assert gateway.requests[-1].prompt[:4] == bytes(4)
        assert choice["text"] == prompt + OUTPUTS[0]
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


@pytest.mark.parametrize("neutral", [{"suffix": ""}, {"suffix": None}, {"best_of": 1}])
def test_neutral_values_are_taken(gateway, neutral):
    assert complete(gateway, **neutral)["choices"]


def test_a10_best_of_equal_to_n_is_n(gateway):
    assert len(complete(gateway, best_of=2, n=2)["choices"]) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"echo": "yes"}, "echo"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", 5]}, "prompt[1]"),
        ({"prompt": [5, "a"]}, "prompt"),
        ({"prompt": [408]}, "prompt"),
        ({"prompt": [[1], [-1]]}, "prompt[1]"),
        ({"prompt": [2**63]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["a"] * 2000}, "prompt"),
        ({"response_format": "text"}, "response_format"),
        ({"messages": []}, "messages"),
        ({"tools": []}, "tools"),
    ],
)
def test_wrong_fields_are_named(gateway, fields, param):
    error = error_of(ask(gateway, COMPLETIONS, {"prompt": PROMPT, **fields}), 400)
    assert error["param"] == param
    assert gateway.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"400": 5}}, "logit_bias"),
        ({"logit_bias": {"-1": 5}}, "logit_bias"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1000}}, "logit_bias"),
        ({"stop_token_ids": [400]}, "stop_token_ids"),
        ({"stop_token_ids": [-1], "min_tokens": 1}, "stop_token_ids"),
    ],
)
def test_p08_ids_outside_the_vocabulary_are_refused_in_streams_too(gateway, fields, param):
    for stream in (False, True):
        body = {"prompt": PROMPT, "stream": stream, **fields}
        assert error_of(ask(gateway, COMPLETIONS, body), 400)["param"] == param
    assert gateway.requests == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
def test_q04_output_is_cut_to_the_room_that_the_context_has(renderer, path, stream):
    gateway = ScriptedGateway(renderer, [[80] * 600], context_len=512)
    for asked in (200, 10**9):
        if path == "/generate":
            body = {"input_ids": [90] * 500, "sampling_params": {"max_new_tokens": asked}}
        else:
            body = {"prompt": [90] * 500, "max_tokens": asked}
        assert ask(gateway, path, {**body, "stream": stream}).status_code == 200
        assert gateway.requests[-1].params.max_new_tokens == 12


@pytest.mark.parametrize(("length", "bound", "fits"), [
    (511, 5, True), (512, 5, False), (513, 5, False), (512, 0, True), (513, 0, False),
])  # fmt: skip
def test_q04_a_prompt_that_fills_the_context_is_refused(renderer, length, bound, fits):
    gateway = ScriptedGateway(renderer, context_len=512)
    response = ask(gateway, COMPLETIONS, {"prompt": [90] * length, "max_tokens": bound})
    if fits:
        assert response.status_code == 200
    else:
        assert error_of(response, 400)["code"] == "context_length_exceeded"


def test_q04_a_prompt_past_the_kv_pool_is_refused(renderer):
    gateway = ScriptedGateway(renderer, context_len=512, kv_tokens=64)
    error = error_of(ask(gateway, COMPLETIONS, {"prompt": [90] * 64}), 400)
    assert error["code"] == "context_length_exceeded"
    assert "KV pool" in error["message"]
    ask(gateway, COMPLETIONS, {"prompt": [90] * 60})
    assert gateway.requests[-1].params.max_new_tokens == 4
