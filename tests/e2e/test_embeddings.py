"""Embeddings of a tiny model: those of transformers, alone, in a batch, in chunks, and cached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModel

from radixserve.api.app import create_app
from radixserve.config.schema import Config, ModelConfig
from radixserve.engine import Engine
from tests.e2e.conftest import check_no_leak
from tests.e2e.test_engine import prompt_of

PROMPTS = [prompt_of(n, seed) for seed, n in enumerate((1, 7, 40, 129, 300))]


@pytest.fixture(scope="module")
def states(tiny_model) -> list[np.ndarray]:
    """Final hidden states of each prompt by transformers: [tokens, hidden_size]."""
    model = AutoModel.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.inference_mode():
        return [model(torch.tensor([ids])).last_hidden_state[0].numpy() for ids in PROMPTS]


@pytest.fixture(scope="module", params=["cpu", "native"])
def engine(request, start: Callable[..., Engine]) -> Iterator[Engine]:
    with start(attention=request.param, chunk=64, kv_tokens=4096) as running:
        yield running
        check_no_leak(running)


def embed(engine: Engine, inputs: list, **fields) -> np.ndarray:
    """The vectors over HTTP, asked on the engine's own event loop: [inputs, hidden_size]."""

    async def ask() -> list[list[float]]:
        app = create_app(engine._gateway, Config(model=ModelConfig(model="tiny")))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            reply = await client.post("/v1/embeddings", json={"input": inputs, **fields})
        assert reply.status_code == 200, reply.text
        return [row["embedding"] for row in reply.json()["data"]]

    return np.asarray(asyncio.run_coroutine_threadsafe(ask(), engine._loop).result(), np.float64)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_parity_alone_in_a_batch_in_chunks_and_cached(engine, states, pooling) -> None:
    wanted = np.stack([s.mean(0) if pooling == "mean" else s[-1] for s in states])
    options = {"pooling": pooling, "normalize": False}
    engine.flush_cache()
    alone = np.concatenate([embed(engine, [ids], **options) for ids in PROMPTS])
    np.testing.assert_allclose(alone, wanted, atol=2e-5)
    cached = np.concatenate([embed(engine, [ids], **options) for ids in PROMPTS])
    np.testing.assert_allclose(cached, wanted, atol=2e-5)
    engine.flush_cache()
    np.testing.assert_allclose(embed(engine, PROMPTS, **options), wanted, atol=2e-5)
    units = embed(engine, PROMPTS, pooling=pooling)
    np.testing.assert_allclose(units, wanted / np.linalg.norm(wanted, axis=1)[:, None], atol=2e-5)


def test_beside_generation(engine, states) -> None:
    ids = prompt_of(100, 9)
    params = {"max_new_tokens": 30, "temperature": 0}
    before = engine.generate(input_ids=ids, sampling_params=params)["output_ids"]
    stream = engine.stream(input_ids=ids, sampling_params=params)
    next(stream)
    found = embed(engine, PROMPTS, normalize=False)
    np.testing.assert_allclose(found, [s.mean(0) for s in states], atol=2e-5)
    assert list(stream)[-1]["output_ids"] == before
