"""The native dialect: the service itself, and /generate."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest

from radixserve.errors import InvalidRequest, RequestError
from radixserve.native.service import NativeService
from tests.api.scripted import ScriptedGateway
from tests.api.talk import answered, ask, error_of, streamed

OUTPUTS = ("Paris is 🦙", "Berlin")


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, OUTPUTS)


def generate(gateway, **body):
    return answered(gateway, "/generate", body)


def ids_of(renderer, text):
    return renderer.tokenizer.encode(text, opens=False, special=True).tolist()


def sent(gateway):
    return [memoryview(request.prompt).cast("i").tolist() for request in gateway.requests]


def test_a_reply(gateway, renderer):
    reply = generate(gateway, text="the cat", rid="mine")
    ids = [*ids_of(renderer, OUTPUTS[0]), 2]
    meta = reply["meta_info"]
    assert reply["text"] == OUTPUTS[0]
    assert reply["output_ids"] == ids
    assert meta.pop("e2e_latency") >= 0
    assert meta.pop("queue_time") >= 0
    assert meta == {
        "id": "mine",
        "finish_reason": {"type": "stop", "matched": 2},
        "prompt_tokens": len(ids_of(renderer, "the cat")),
        "completion_tokens": len(ids),
        "cached_tokens": 0,
        "forced_tokens": 0,
    }
    assert gateway.requests[0].params.max_new_tokens == 128


def test_the_other_ways_to_finish(gateway):
    reply = generate(gateway, text="x", sampling_params={"max_new_tokens": 2})
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    reply = generate(gateway, text="x", sampling_params={"stop": "is"})
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": "is"}
    assert reply["text"] == "Paris".partition("is")[0]
    reply = generate(gateway, text="x", sampling_params={"max_new_tokens": 0})
    assert (reply["text"], reply["output_ids"]) == ("", [])


def test_a_list_in_gives_a_list_out(gateway, renderer):
    ids = ids_of(renderer, "dog")
    assert isinstance(generate(gateway, text=["a"]), list)
    assert isinstance(generate(gateway, input_ids=[ids]), list)
    assert isinstance(generate(gateway, input_ids=ids), dict)
    replies = generate(
        gateway,
        text=["a", "b"],
        rid=["r1", "r2"],
        sampling_params=[{"n": 2, "max_new_tokens": 1}, {"max_new_tokens": 3}],
    )
    assert [reply["meta_info"]["id"] for reply in replies] == ["r1", "r1", "r2"]
    assert [reply["meta_info"]["completion_tokens"] for reply in replies] == [1, 1, 3]
    both = generate(gateway, text="a", sampling_params={"n": 2})
    assert [reply["text"] for reply in both] == list(OUTPUTS)


@pytest.mark.parametrize("stop", [None, "is 🦙", "zzz"])
def test_s05_a_stream_ends_in_the_whole(gateway, stop):
    body = {"text": "the cat", "rid": "r", "sampling_params": {"stop": stop},
            "return_logprob": True, "top_logprobs_num": 1, "logprob_start_len": 0}  # fmt: skip
    whole = generate(gateway, **body)
    chunks = streamed(gateway, "/generate", body)
    assert all(chunk["meta_info"]["finish_reason"] is None for chunk in chunks[:-1])
    for before, after in itertools.pairwise(chunks):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    last = chunks[-1]
    for reply in (whole, last):
        for name in ("e2e_latency", "queue_time", "cached_tokens"):
            del reply["meta_info"][name]
    assert last == whole


def test_streamed_batches_carry_an_index(gateway):
    chunks = streamed(gateway, "/generate", {"text": ["a", "b"], "sampling_params": {"n": 2}})
    ends = {c["index"]: c["text"] for c in chunks if c["meta_info"]["finish_reason"]}
    assert ends == {0: OUTPUTS[0], 1: OUTPUTS[1], 2: OUTPUTS[0], 3: OUTPUTS[1]}
    assert all("index" not in chunk for chunk in streamed(gateway, "/generate", {"text": "a"}))


def test_parts_come_back_as_ids_that_go_on(gateway, renderer):
    parts = [{"role_open": "user"}, {"text": "the cat"}, {"border": True}, {"text": " sat"},
             {"role_close": "user"}, {"role_open": "assistant"}]  # fmt: skip
    reply = generate(gateway, input=parts)
    told = reply["meta_info"]["prompt"]
    assert told == {"ids": sent(gateway)[0], "roles": ["user"], "open": "assistant"}
    assert (reply["meta_info"]["kept_ids"], reply["meta_info"]["kept_tail"]) == (
        len(reply["output_ids"]) - 1,
        "",
    )
    kept = reply["output_ids"][: reply["meta_info"]["kept_ids"]]
    onward = [{**told, "ids": told["ids"] + kept}, {"role_close": "assistant"}]
    generate(gateway, input=onward)
    assert sent(gateway)[1][: len(told["ids"]) + len(kept)] == told["ids"] + kept


@pytest.mark.parametrize("stop", ["is 🦙", "ri", "s ", "🦙", "Paris"])
def test_kept_ids_and_tail_spell_the_kept_text(gateway, renderer, stop):
    reply = generate(gateway, input=[{"text": "x"}], sampling_params={"stop": stop})
    kept = reply["output_ids"][: reply["meta_info"]["kept_ids"]]
    spelt = renderer.tokenizer.decode(kept) + reply["meta_info"]["kept_tail"]
    assert spelt == reply["text"] == OUTPUTS[0].partition(stop)[0]


def test_what_is_kept_ends_on_the_border_of_a_character(renderer):
    # "🦙" is several tokens; the stop begins right behind the first part of none of them.
    gateway = ScriptedGateway(renderer, ("a🦙b",))
    reply = generate(gateway, input=[{"text": "x"}], sampling_params={"stop": "b"})
    meta = reply["meta_info"]
    kept = renderer.tokenizer.decode(reply["output_ids"][: meta["kept_ids"]])
    assert "\ufffd" not in kept
    assert kept + meta["kept_tail"] == "a🦙"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "input_ids"),
        ({"text": ""}, "text"),
        ({"text": []}, "text"),
        ({"text": ["a", 5]}, "text[1]"),
        ({"text": 5}, "text"),
        ({"text": "\ud83d"}, "text"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[]]}, "input_ids[0]"),
        ({"input_ids": [400]}, "input_ids"),
        ({"input_ids": [-1]}, "input_ids"),
        ({"input_ids": [2**63]}, "input_ids"),
        ({"input_ids": [1.5]}, "input_ids"),
        ({"input_ids": [True]}, "input_ids"),
        ({"input_ids": [[1], [5, "x"]]}, "input_ids[1]"),
        ({"input": []}, "input"),
        ({"input": [{"ids": [400]}]}, "input[0].ids"),
        ({"input": [{"choices": []}]}, "input[0].choices"),
        ({"input": [{"choices": ["a"], "unconditional": 1}]}, "input.unconditional"),
        ({"input": [{"choices": ["a"]}], "sampling_params": {"n": 2}}, "sampling_params"),
        ({"input": [{"choices": ["a"]}], "stream": True}, "stream"),
        ({"text": "a", "stream": "yes"}, "stream"),
        ({"text": "a", "colour": 1}, "colour"),
        ({"text": "a", "token_ids_logprob": [5]}, "token_ids_logprob"),
        ({"text": "a", "token_ids_logprob": [-1], "return_logprob": True}, "token_ids_logprob"),
        ({"text": "a", "token_ids_logprob": ["a"], "return_logprob": True}, "token_ids_logprob"),
        ({"text": "a", "token_ids_logprob": [[5]], "return_logprob": True}, "token_ids_logprob"),
        (
            {"text": ["a", "b"], "token_ids_logprob": [[5]], "return_logprob": True},
            "token_ids_logprob",
        ),
        (
            {"text": ["a", "b"], "token_ids_logprob": [[5], 6], "return_logprob": True},
            "token_ids_logprob",
        ),
        (
            {"text": "a", "token_ids_logprob": [5] * 257, "return_logprob": True},
            "token_ids_logprob",
        ),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"text": "a", "top_logprobs_num": 2}, "top_logprobs_num"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
        ({"text": "a", "logprob_start_len": -2}, "logprob_start_len"),
        ({"text": "a", "priority": 2**63}, "priority"),
        ({"text": "a", "rid": ["x"]}, "rid"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
        ({"text": "a", "program": {"call": "0"}}, "program.id"),
        ({"text": "a", "program": {"id": "p", "siblings": 0}}, "program.siblings"),
        ({"text": "a", "cache_salt": "\ude00"}, "cache_salt"),
        ({"text": "a", "cache_salt": "x" * 257}, "cache_salt"),
        ({"text": "a", "extra_key": "x" * 257}, "extra_key"),
        ({"text": "a", "rid": "x" * 257}, "rid"),
        ({"text": "a", "program": {"id": "x" * 257}}, "program.id"),
        ({"text": "a", "program": {"id": "p", "call": "x" * 1025}}, "program.call"),
        ({"text": "a", "program": {"id": "p", "parent": "x" * 1025}}, "program.parent"),
    ],
)
def test_wrong_fields_are_named(gateway, body, param):
    async def go():
        await NativeService(gateway).generate(body)

    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(go())
    assert caught.value.param == param
    assert gateway.requests == []


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ({"text": [504, 3575]}, "input_ids"),
        ({"text": [[504, 3575]]}, "input_ids"),
        ({"prompt": "a"}, "did you mean text?"),
        ({"text": "a", "max_new_tokens": 3}, "belongs in sampling_params"),
        ({"text": "a", "sampling_parms": {}}, "did you mean sampling_params?"),
        ({"text": "a", "sampling_params": {"max_tokens": 3}}, "did you mean max_new_tokens?"),
        ({"text": "a", "sampling_params": {"seed": 3}}, "did you mean sampling_seed?"),
        ({"text": "a", "sampling_params": {"temprature": 0}}, "did you mean temperature?"),
    ],
)
def test_errors_hint_at_the_field_that_was_meant(gateway, body, hint):
    assert hint in error_of(ask(gateway, "/generate", body), 400)["message"]


def test_names_that_resemble_nothing_get_no_hint(gateway):
    error = error_of(ask(gateway, "/generate", {"text": "a", "zzzzzzzz": 1}), 400)
    assert error["message"] == "unknown field zzzzzzzz"


@pytest.mark.parametrize(
    ("name", "value", "neutral"),
    [
        ("regex", 5, None),
        ("json_schema", [], None),
        ("ebnf", {}, None),
        ("structural_tag", 5, None),
        ("choice", "a", None),
        ("json_object", "yes", False),
        ("whitespace", "free", "fixed"),
        ("constraint_mode", "hope", "enforce"),
        ("stop_regex", "a(", ""),
        ("stop_regex", "a*", []),
        ("stop_regex", ["a"] * 17, [""]),
        ("stop_regex", "(a|b)*a(a|b){14}", []),
        ("stop_regex", r"\bfoo", []),
        ("skip_special_tokens", 1, True),
        ("spaces_between_special_tokens", "no", False),
        ("no_stop_trim", 1, False),
        ("max_new_tokens", -1, None),
        ("max_new_tokens", "5", None),
        ("temperature", True, None),
        ("top_p", 1.5, 1),
        ("n", 1.5, 1.0),
        ("sampling_seed", -1, None),
        ("logit_bias", {"abc": 1}, {}),
        ("stop_token_ids", [-1], []),
        ("colour", 1, None),
    ],
)
def test_sampling_parameters_are_refused_by_name(gateway, name, value, neutral):
    body = {"text": "a", "sampling_params": {name: value}}
    error = error_of(ask(gateway, "/generate", body), 400)
    assert error["param"] == f"sampling_params.{name}"
    assert name.removeprefix("sampling_") in error["message"]
    assert generate(gateway, text="a", sampling_params={name: neutral})["text"]


def test_sampling_parameters_by_their_native_names(gateway):
    generate(
        gateway,
        text="a",
        sampling_params={
            "max_new_tokens": 9, "min_new_tokens": 1, "temperature": 0, "top_p": 0.5, "top_k": 4,
            "min_p": 0.2, "frequency_penalty": 0.1, "presence_penalty": 0.2,
            "repetition_penalty": 1.5, "logit_bias": {"7": 1}, "stop": ["a", "b"],
            "stop_token_ids": [3], "ignore_eos": True, "sampling_seed": 5, "n": 2,
        },
        priority=2, cache_salt="s", extra_key="k", program={"id": "p"},
    )  # fmt: skip
    (request,) = gateway.requests
    params = request.params
    assert (params.max_new_tokens, params.min_new_tokens, params.seed, params.n) == (9, 1, 5, 2)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 0.5, 4, 0.2)
    assert (params.frequency_penalty, params.presence_penalty) == (0.1, 0.2)
    assert (params.repetition_penalty, params.logit_bias) == (1.5, {7: 1.0})
    assert (params.stop, params.stop_token_ids, params.ignore_eos) == (("a", "b"), (3,), True)
    assert (request.priority, request.program.id) == (2, "p")
    assert request.namespace


def test_namespaces_do_not_run_together(gateway):
    for salt, key in (("a", "bc"), ("ab", "c"), ("", "abc"), ("abc", "")):
        generate(gateway, text="x", cache_salt=salt, extra_key=key)
    assert len({request.namespace for request in gateway.requests}) == 4


def test_one_refusal_ends_the_whole_batch(renderer):
    gateway = ScriptedGateway(renderer, context_len=64)
    for stream in (False, True):
        body = {"input_ids": [[5] * 4, [5] * 99], "stream": stream}
        error = error_of(ask(gateway, "/generate", body), 400)
        assert error["code"] == "context_length_exceeded"
    assert gateway.running == 0


def test_a_rid_in_flight_is_not_taken_twice(gateway):
    async def go():
        service = NativeService(gateway)
        gateway.gate = asyncio.Event()
        first = asyncio.create_task(service.generate({"text": "a", "rid": "r"}))
        while not gateway.running:
            await asyncio.sleep(0.001)
        with pytest.raises(RequestError) as caught:
            await service.generate({"text": "b", "rid": "r"})
        gateway.gate.set()
        await first
        await service.generate({"text": "b", "rid": "r"})
        return caught.value.param

    assert asyncio.run(go()) == "rid"


def test_an_abort_reaches_every_prompt_of_its_call(gateway):
    async def go():
        service = NativeService(gateway)
        gateway.gate = asyncio.Event()
        whole = asyncio.create_task(service.generate({"text": ["a", "b"], "rid": "r"}))
        other = asyncio.create_task(service.generate({"text": "c", "rid": "other"}))
        while gateway.at_gate < 3:
            await asyncio.sleep(0.001)
        service.abort("nobody")
        service.abort("r")
        replies = await whole
        assert not other.done()
        service.abort_all()
        return [*replies, await other]

    for reply in asyncio.run(go()):
        assert reply["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(reply["output_ids"]) == 2
    assert gateway.running == 0


def test_closing_a_stream_ends_what_it_asked_for(gateway):
    async def go():
        chunks = NativeService(gateway).stream({"text": ["a", "b"]})
        await anext(chunks)
        await chunks.aclose()

    asyncio.run(go())
    assert gateway.running == 0
    assert len(gateway.closed_early) == 2


def test_ids_on_the_wire_are_little_endian_int32(gateway):
    generate(gateway, input_ids=[1, 258])
    assert gateway.requests[0].prompt == np.array([1, 258], "<i4").tobytes()
