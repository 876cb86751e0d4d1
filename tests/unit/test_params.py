"""SamplingParams: what every field takes and refuses, made here or decoded from the wire."""

from __future__ import annotations

import math

import msgspec
import pytest

from radixserve.errors import InvalidRequest
from radixserve.wire import params as limits
from radixserve.wire.params import SamplingParams, StopPattern

BIG = 2**31 - 1

PATTERN = StopPattern("a", (((97, 97, 1),), ()), (1,))

GOOD = {
    "max_new_tokens": [0, 1, BIG],
    "min_new_tokens": [0, 1, 128],
    "temperature": [0, 0.0, 1e-7, 0.7, 2, 1e4],
    "top_k": [-1, 0, 1, 49_152, BIG],
    "top_p": [0, 1e-9, 0.5, 1, 1.0],
    "min_p": [0, 0.05, 1],
    "frequency_penalty": [-2, 0, 0.5, 2],
    "presence_penalty": [-2.0, 0.0, 2.0],
    "repetition_penalty": [1e-3, 1, 1.3, 10],
    "logit_bias": [{}, {0: 5}, {BIG: -100.0, 1: 100}],
    "stop": [(), ("a",), ("\n", "é" * 512), ("x",) * limits.MAX_STOPS],
    "stop_token_ids": [(), (0,), (BIG,), tuple(range(limits.MAX_STOP_TOKEN_IDS))],
    "stop_regex": [(), (PATTERN,), (PATTERN,) * limits.MAX_STOPS],
    "ignore_eos": [True, False],
    "seed": [None, 0, 42, 2**63 - 1],
    "n": [1, limits.MAX_CHOICES],
}

NOT_NUMBERS = [math.nan, math.inf, -math.inf, True, "1", None]

BAD = {
    "max_new_tokens": [-1, 2**31, 1.0, True, "1", None],
    "min_new_tokens": [-1, 129, 2**31, 0.5, True],
    "temperature": [-0.1, 1.1e4, *NOT_NUMBERS],
    "top_k": [-2, 2**31, 1.5, True, None],
    "top_p": [-1e-9, 1.001, *NOT_NUMBERS],
    "min_p": [-0.1, 1.1, *NOT_NUMBERS],
    "frequency_penalty": [-2.1, 2.1, *NOT_NUMBERS],
    "presence_penalty": [-2.1, 2.1, *NOT_NUMBERS],
    "repetition_penalty": [0, -1, 10.1, *NOT_NUMBERS],
    "logit_bias": [
        None,
        [(5, 1.0)],
        {-1: 5.0},
        {2**31: 5.0},
        {"5": 5.0},
        {True: 5.0},
        {5: 1000},
        {5: -100.5},
        {5: math.nan},
        {5: "1"},
        dict.fromkeys(range(limits.MAX_LOGIT_BIAS + 1), 1.0),
    ],
    "stop": [
        None,
        "END",  # would stop at E, at N and at D
        ["END"],
        ("",),
        ("\ud800",),
        ("ok\udfff",),
        (5,),
        ("é" * 513,),
        ("x",) * (limits.MAX_STOPS + 1),
    ],
    "stop_token_ids": [
        None,
        5,
        [5],
        (-1,),
        (2**31,),
        (1.5,),
        (True,),
        ("a",),
        tuple(range(limits.MAX_STOP_TOKEN_IDS + 1)),
    ],
    "stop_regex": [None, "a", ("a",), [PATTERN], (PATTERN,) * (limits.MAX_STOPS + 1)],
    "ignore_eos": [1, 0, "yes", None],
    "seed": [-1, 2**63, 1.5, True, "1"],
    "n": [0, -1, limits.MAX_CHOICES + 1, 1.0, True, None],
}


def pairs(table):
    return [(name, value) for name, values in table.items() for value in values]


def test_every_field_is_in_both_tables():
    assert list(GOOD) == list(BAD) == list(SamplingParams.__struct_fields__)


@pytest.mark.parametrize(("name", "value"), pairs(GOOD))
def test_good_values_are_kept_and_survive_the_wire(name, value):
    params = SamplingParams(**{name: value})
    assert getattr(params, name) == value
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
    assert decoded == params


@pytest.mark.parametrize(("name", "value"), pairs(BAD))
def test_bad_values_are_refused_by_name(name, value):
    with pytest.raises(InvalidRequest) as refusal:
        SamplingParams(**{name: value})
    assert refusal.value.param == name
    assert refusal.value.status == 400
    assert name in refusal.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("n", 0),
        ("seed", 2**63),
        ("logit_bias", {5: 1000.0}),
        ("stop_token_ids", [-1]),
        ("stop", [""]),
    ],
)
def test_decoding_checks_too(name, value):
    with pytest.raises((InvalidRequest, msgspec.ValidationError)):
        msgspec.msgpack.decode(msgspec.msgpack.encode({name: value}), type=SamplingParams)


def test_min_may_equal_but_not_pass_max():
    assert SamplingParams(max_new_tokens=3, min_new_tokens=3).min_new_tokens == 3
    with pytest.raises(InvalidRequest) as refusal:
        SamplingParams(max_new_tokens=3, min_new_tokens=4)
    assert refusal.value.param == "min_new_tokens"


def test_stop_length_counts_bytes_not_characters():
    assert SamplingParams(stop=("🦙" * 256,))
    with pytest.raises(InvalidRequest):
        SamplingParams(stop=("🦙" * 257,))


@pytest.mark.parametrize(("temperature", "greedy"), [(0.0, True), (9e-7, True), (1e-6, False)])
def test_greedy_is_a_temperature_below_the_threshold(temperature, greedy):
    assert SamplingParams(temperature=temperature).greedy is greedy


def test_params_are_frozen():
    params = SamplingParams()
    with pytest.raises(AttributeError):
        params.temperature = 0.5
