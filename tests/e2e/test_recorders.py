"""What is told of requests, and a recorder that cannot take it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from radixserve.chunks import Finish, Request
from radixserve.config.schema import CacheConfig, Config, ModelConfig
from radixserve.launch import launch
from radixserve.metrics.trail import Trail
from radixserve.wire.params import SamplingParams


class Broken:
    """Raises whatever it is told, and counts how often that was."""

    def __init__(self) -> None:
        self.told = 0

    def produced(self, trail: Trail, count: int, gap: float | None) -> None:
        self.told += 1
        raise ValueError("no room for another sample")

    def ended(self, trail: Trail) -> None:
        self.told += 1
        raise KeyError("label")


class Kept:
    """Keeps what ended."""

    def __init__(self) -> None:
        self.ends: list[Trail] = []

    def produced(self, trail: Trail, count: int, gap: float | None) -> None:
        pass

    def ended(self, trail: Trail) -> None:
        self.ends.append(trail)


def test_o06_a_recorder_that_raises_fails_no_request(
    tiny_model, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests end as ever, the recorder behind it is told of all of them, one line says so."""
    broken, kept = Broken(), Kept()
    config = Config(
        model=ModelConfig(model=str(tiny_model), dtype="float32", threads=1),
        cache=CacheConfig(kv_tokens=1024),
    )

    async def run() -> list[Finish | None]:
        launched = await launch(config, inline=True, recorders=[broken, kept])
        gateway = launched.gateway
        finishes = []
        try:
            for rid in ("a", "b"):
                params = SamplingParams(max_new_tokens=4, temperature=0.0, ignore_eos=True)
                ids = gateway.renderer.tokenizer.encode("the cat", opens=True, special=True)
                request = Request(rid=rid, prompt=ids.tobytes(), params=params)
                chunks = [chunk async for chunk in gateway.submit(request)]
                finishes.append(chunks[-1].finish)
            assert gateway.alive
        finally:
            await launched.close()
        return finishes

    with caplog.at_level(logging.ERROR, "radixserve"):
        finishes = asyncio.run(run())
    assert [finish.usage.completion_tokens for finish in finishes if finish] == [4, 4]
    assert [trail.outcome for trail in kept.ends] == ["length", "length"]
    assert broken.told > 2
    (line,) = [record for record in caplog.records if "Broken failed" in record.message]
    assert line.exc_info is not None
