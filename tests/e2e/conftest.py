"""A tiny random model with a tokenizer of its own, and engines on it."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from radixserve.engine import Engine
from tests import tiny
from tests.tiny_tokenizer import make_tokenizer

VOCAB_ROWS = 448  # more rows than the tokenizer has tokens


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    tiny.make_model(folder, vocab=VOCAB_ROWS, max_position_embeddings=8192, eos_token_id=2)
    return make_tokenizer(folder)


@pytest.fixture(scope="session")
def start(tiny_model: pathlib.Path) -> Callable[..., Engine]:
    """Start an engine on the tiny model: float32, one thread, in this process unless told."""

    def start_engine(**settings: Any) -> Engine:
        defaults = {
            "inline": True,
            "dtype": "float32",
            "threads": 1,
            "kv_tokens": 8192,
            "audit": True,
        }
        return Engine(str(tiny_model), **(defaults | settings))

    return start_engine


@pytest.fixture(scope="module")
def engine(start: Callable[..., Engine]) -> Iterator[Engine]:
    with start() as running:
        yield running
        check_no_leak(running)


def check_no_leak(engine: Engine) -> None:
    """Recipe NOLEAK of an idle engine."""
    gauges = engine.gauges()
    assert (gauges.running, gauges.waiting, gauges.locked_tokens) == (0, 0, 0)
    assert gauges.free_tokens + gauges.evictable_tokens == gauges.kv_tokens
    engine.flush_cache()
    gauges = engine.gauges()
    assert gauges.free_tokens == gauges.kv_tokens
