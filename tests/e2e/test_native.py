"""The engine on native kernels: the torch path's tokens, and the same alone as in company."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from radixserve.engine import Engine
from radixserve.kernels.cpu import library
from tests.e2e.test_engine import greedy, prompt_of

pytestmark = pytest.mark.skipif(library.load() is None, reason="the native library is not built")

COMMON = prompt_of(200, 1)
PROMPTS = [[*COMMON[: 40 * (k % 6)], *prompt_of(5 + 3 * k, k)] for k in range(10)]


def ids_of(replies: list[Any]) -> list[list[int]]:
    return [reply["output_ids"] for reply in replies]


def test_greedy_tokens_are_those_of_torch(start: Callable[..., Engine]) -> None:
    outputs = []
    for settings in ({"attention": "cpu"}, {"attention": "native"}):
        with start(**settings) as engine:
            outputs.append(ids_of(greedy(engine, PROMPTS, 24)))
    assert outputs[0] == outputs[1]


def test_a_shared_prefix_read_once_changes_no_token(start: Callable[..., Engine]) -> None:
    outputs = []
    for shared in (True, False):
        with start(attention="native", shared_attention=shared, dtype="bfloat16") as engine:
            outputs.append(ids_of(greedy(engine, PROMPTS, 24)))
    assert outputs[0] == outputs[1]


def test_seeded_tokens_are_the_same_alone_and_in_company(start: Callable[..., Engine]) -> None:
    with start(attention="native", dtype="bfloat16") as engine:
        params = [{"max_new_tokens": 16, "sampling_seed": k, "temperature": 1.0} for k in range(10)]
        together = engine.generate(input_ids=PROMPTS, sampling_params=params)
        for k in (0, 4, 9):
            engine.flush_cache()
            alone = engine.generate(input_ids=PROMPTS[k], sampling_params=params[k])
            assert alone["output_ids"] == together[k]["output_ids"]
