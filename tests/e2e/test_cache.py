"""The cache, seen and kept, on a real engine."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import pytest

from radixserve.engine import Engine
from radixserve.errors import ConfigError
from tests.e2e.conftest import check_no_leak
from tests.e2e.test_engine import prompt_of

SYSTEM = "You are a patient teacher of geography. " * 6
GREEDY = {"max_new_tokens": 2, "temperature": 0}


def explained(engine: Engine, ids: list[int], **fields) -> dict:
    reply = engine.generate(input_ids=ids, sampling_params=GREEDY, explain_cache=True, **fields)
    return reply["meta_info"]["cache"]


def test_a_miss_is_explained(start: Callable[..., Engine]) -> None:
    with start(kv_tokens=256) as engine:
        first, other = prompt_of(100, 1), prompt_of(60, 2)
        assert explained(engine, first)["reason"] == "never"
        report = explained(engine, [*first[:70], *other])
        assert (report["matched_tokens"], report["reason"]) == (70, "never")
        assert report["token"]["id"] == other[0]
        assert report["cached_token"]["id"] == first[70]
        assert report["cached_token"]["text"]
        assert explained(engine, first, cache_salt="tenant")["cached_token"] is None
        explained(engine, prompt_of(200, 3))
        report = explained(engine, first)
        assert report["reason"] == "evicted"
        assert report["matched_tokens"] + report["lost_tokens"] >= 96
        check_no_leak(engine)


def warm_file(folder: pathlib.Path, *lines) -> pathlib.Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    return path


def test_warm_prompts_are_there_before_the_first_request_and_stay(
    start: Callable[..., Engine], tmp_path: pathlib.Path
) -> None:
    messages = [{"role": "system", "content": SYSTEM}]
    path = warm_file(tmp_path, "a text of its own, which is kept", {"messages": messages})
    with start(kv_tokens=1024, warm=path, warm_share=0.5) as engine:
        warm = engine.gauges().evictable_tokens
        assert warm >= 64
        parts = [{"role_open": "system"}, {"text": SYSTEM}, {"role_close": "system"}]
        for round in range(4):
            reply = engine.generate(input=parts, sampling_params=GREEDY)
            prompt_tokens = reply["meta_info"]["prompt_tokens"]
            assert reply["meta_info"]["cached_tokens"] >= (prompt_tokens - 1) // 16 * 16 - 16
            engine.generate(input_ids=prompt_of(700, round), sampling_params=GREEDY)
        assert engine.gauges().evicted_tokens > 700
        check_no_leak(engine)


def test_warm_prompts_beyond_their_share_are_computed_and_not_kept(
    start: Callable[..., Engine], tmp_path: pathlib.Path
) -> None:
    with start(kv_tokens=1024, warm=warm_file(tmp_path, SYSTEM * 4), warm_share=0.1) as engine:
        engine.generate(input_ids=prompt_of(900, 1), sampling_params=GREEDY)
        reply = engine.generate(SYSTEM * 4, sampling_params=GREEDY)
        assert reply["meta_info"]["cached_tokens"] < 150


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 3"),
        ('""', "empty"),
        ("[]", "a text, a list of messages"),
        ('{"text": "a", "messages": []}', "a text, a list of messages"),
        ("17", "a text, a list of messages"),
        ('[{"content": "x"}]', "role and content"),
        ('["x", "y"]', "a text, a list of messages"),
        ('[{"role": "user"}]', "role and content"),
        ('[{"role": "user", "content": "x"}, 3]', "role and content"),
        ('[{"role": 3, "content": "x"}]', "role"),
        ('{"text": "x", "namespace": 3}', "namespace"),
        ('{"namespace": "x"}', "text"),
        ("[" * 5000, "line 3"),
    ],
)
def test_a_bad_line_is_named(
    start: Callable[..., Engine], tmp_path: pathlib.Path, line: str, why: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('"good"\n\n' + line)
    with pytest.raises(ConfigError, match="line 3") as refused:
        start(warm=path)
    assert why in str(refused.value)


def test_a_prompt_that_does_not_fit_is_named(
    start: Callable[..., Engine], tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ConfigError, match="prompt 2"):
        start(warm=warm_file(tmp_path, "short", SYSTEM * 30), kv_tokens=512)


def test_warming_needs_a_cache_and_a_file(start: Callable[..., Engine], tmp_path) -> None:
    with pytest.raises(ConfigError, match="prefix-cache"):
        start(warm=warm_file(tmp_path, "x"), prefix_cache=False)
    with pytest.raises(ConfigError, match="no such file"):
        start(warm=tmp_path / "none.jsonl")


def test_an_engine_that_was_started_again_is_warm_again(
    start: Callable[..., Engine], tmp_path: pathlib.Path
) -> None:
    with start(inline=False, kv_tokens=1024, warm=warm_file(tmp_path, SYSTEM)) as engine:
        before = engine._run(engine._gateway.cache_stats())
        assert before.warm >= 64
        assert engine._launched is not None
        engine._run(engine._launched.restart())
        assert engine._run(engine._gateway.cache_stats()).warm == before.warm
        reply = engine.generate(SYSTEM, sampling_params=GREEDY)
        assert reply["meta_info"]["cached_tokens"] >= before.warm
