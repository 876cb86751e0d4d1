"""Embeddings through the real scheduler and loop; the executor's hidden states are hashes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine_driver import EngineDriver
from tests.fake_executor import ROOT, chain


def states_of(prompt) -> list[int]:
    states, state = [], ROOT
    for token in prompt:
        state = chain(state, token)
        states.append(state)
    return states


def pooled(prompt, pooling: str) -> np.ndarray:
    """What FakeExecutor's sums, [sum, count], come to."""
    states = states_of(prompt)
    if pooling == "last":
        return np.asarray([states[-1], 1], "<f4")
    return np.asarray([sum(states) / len(states), 1], "<f4")


def embedding(driver: EngineDriver, rid: str) -> np.ndarray:
    return np.frombuffer(driver.finished(rid).embedding, "<f4")


PROMPTS = [[1] * 30, [1] * 17 + [2] * 20, [3], [1] * 30, [4, 4, 4, 4], [1] * 45]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_alone_in_a_batch_and_in_chunks(pooling, overlap) -> None:
    for chunk in (4, 16, 64):
        driver = EngineDriver(pages=64, page_size=4, chunk=chunk, token_budget=64, overlap=overlap)
        talk = driver.submit([1] * 25, max_new=6)
        rids = [driver.submit(p, max_new=0, pooling=pooling) for p in PROMPTS]
        driver.run()
        for rid, prompt in zip(rids, PROMPTS):
            np.testing.assert_allclose(embedding(driver, rid), pooled(prompt, pooling), rtol=1e-6)
        assert driver.finished(talk).embedding == b""
        driver.no_leak()


def test_a_mean_sees_every_token_and_the_last_may_be_cached() -> None:
    driver = EngineDriver(pages=64, page_size=4)
    prompt = [1] * 40
    for pooling, cached in (("mean", 0), ("last", 39), ("mean", 0), (None, 39)):
        rid = driver.submit(prompt, max_new=0, pooling=pooling)
        driver.run()
        assert driver.finished(rid).cached_tokens == cached
        if pooling is not None:
            np.testing.assert_allclose(embedding(driver, rid), pooled(prompt, pooling), rtol=1e-6)
    driver.no_leak()


@pytest.mark.parametrize("where", ["launch", "sample"])
@pytest.mark.parametrize("turns", [0, 1, 3])
def test_a_failed_step_does_not_count_twice(where, turns) -> None:
    driver = EngineDriver(pages=64, page_size=4, chunk=4)
    rids = [driver.submit(prompt, max_new=0, pooling="mean") for prompt in PROMPTS]
    for _ in range(turns):
        driver.turn()
    driver.executor.fail_next = where
    driver.run()
    assert driver.executor.fail_next is None
    for rid, prompt in zip(rids, PROMPTS):
        np.testing.assert_allclose(embedding(driver, rid), pooled(prompt, "mean"), rtol=1e-6)
    driver.no_leak()


def test_an_aborted_embedding_leaves_nothing() -> None:
    driver = EngineDriver(pages=64, page_size=4, chunk=4)
    rid = driver.submit([1] * 40, max_new=0, pooling="mean")
    driver.turn()
    driver.abort(rid)
    driver.run()
    assert driver.finished(rid).reason == "abort"
    driver.no_leak()
