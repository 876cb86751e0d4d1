"""Case O09: a server that has answered much is no larger than one that has answered some."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from benchmarks.storm_client import Talk
from tests.e2e.test_metrics import scrape
from tests.e2e.test_serve import Server, no_leak

MIB = 2**20


def memory(server: Server) -> int:
    front = psutil.Process(server.process.pid)
    return sum(each.memory_info().rss for each in [front, *front.children(recursive=True)])


async def ask(talk: Talk, number: int) -> int:
    """Plain, refused, past its deadline, under a schema of its own, or left by its client."""
    rid = f"r{number}"
    body = {"prompt": f"{number} the quick", "max_tokens": 1, "rid": rid}
    match number % 10:
        case 0 | 5:
            body |= {"temperature": -1}
        case 1 | 6:
            body |= {"max_tokens": 200, "ignore_eos": True, "timeout_s": 0.01}
        case 2:
            schema = {"enum": [number]}
            body |= {"max_tokens": 8, "response_format": {
                "type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}  # fmt: skip
        case 3:
            body |= {"max_tokens": 200, "stream": True}
            async with talk.post("/v1/completions", body, "", wait=False) as call:
                return await call.head()
    async with talk.post("/v1/completions", body, "") as call:
        await call.text()
        return call.status


@pytest.mark.slow
def test_o09_memory_stays_flat_and_nothing_is_kept(tiny_model, tmp_path) -> None:
    running = Server(tiny_model, tmp_path / "log", "--no-access-log").wait_ready()
    talk = Talk("127.0.0.1", running.port)

    async def batch(first: int, count: int) -> set[int]:
        gate = asyncio.Semaphore(24)

        async def one(number: int) -> int:
            async with gate:
                return await ask(talk, number)

        return set(await asyncio.gather(*(one(first + k) for k in range(count))))

    try:
        assert asyncio.run(batch(0, 2500)) <= {200, 400, 504}
        no_leak(running)
        middle = memory(running)
        assert asyncio.run(batch(2500, 2500)) <= {200, 400, 504}
        no_leak(running)
        assert memory(running) - middle < 20 * MIB
        seen = scrape(running)
        assert seen["requests_in_flight"] == seen["num_requests_compiling"] == 0
        assert seen["requests_total"] >= 3900
    finally:
        running.stop()
