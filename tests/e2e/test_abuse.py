"""What hostile timing once broke: reused names, traffic into a dying engine, cancelled streams,
closing in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from radixserve.engine import Engine
from radixserve.errors import EngineDead, RequestError
from tests.e2e.conftest import check_no_leak
from tests.e2e.test_engine import GREEDY, greedy, prompt_of
from tests.e2e.test_process import wait_until
from tests.e2e.test_serve import Server, children


def test_a_reused_rid_never_gets_the_tokens_of_the_request_before(engine: Engine) -> None:
    want = greedy(engine, prompt_of(5, 2), 8)["output_ids"]
    for taken in (1, 2, 3, 1, 2, 3):
        old = engine.stream(
            input_ids=prompt_of(3, 1), rid="X", sampling_params=GREEDY | {"max_new_tokens": 4000}
        )
        for _ in range(taken):
            next(old)
        old.close()
        assert greedy(engine, prompt_of(5, 2), 8, rid="X")["output_ids"] == want
    check_no_leak(engine)


def test_traffic_into_a_dying_engine_does_not_freeze_the_front(tiny_model, tmp_path) -> None:
    running = Server(tiny_model, tmp_path / "log").wait_ready()
    stop = threading.Event()
    answers: list[int] = []

    def ask() -> None:
        while not stop.is_set():
            reply = httpx.post(
                f"{running.url}/generate",
                json={"text": "x", "sampling_params": {"max_new_tokens": 2}},
                timeout=10,
            )
            answers.append(reply.status_code)
            time.sleep(0.003)

    try:
        with ThreadPoolExecutor(3) as pool:
            askers = [pool.submit(ask) for _ in range(3)]
            wait_until(lambda: answers.count(200) > 5, 20)
            os.kill(children(running.process.pid)[0], signal.SIGKILL)
            wait_until(lambda: answers[-1:] == [503], 6)
            assert httpx.get(f"{running.url}/health", timeout=2).status_code == 503
            stop.set()
            for asker in askers:
                asker.result(12)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(15) == 0
    finally:
        stop.set()
        running.stop()


def test_a_cancelled_async_stream_is_cancelled(engine: Engine) -> None:
    async def consume(started: asyncio.Event) -> None:
        async for _ in engine.async_stream(
            input_ids=prompt_of(9), sampling_params=GREEDY | {"max_new_tokens": 3000}
        ):
            started.set()

    async def run() -> list[Any]:
        tasks = []
        for _ in range(20):
            started = asyncio.Event()
            task = asyncio.create_task(consume(started))
            await started.wait()
            task.cancel()
            tasks.append(task)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consume(asyncio.Event()), 0.2)
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(run())
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    wait_until(lambda: engine.gauges().running == 0)
    check_no_leak(engine)


@pytest.mark.parametrize("closers", [1, 3])
def test_closing_in_the_middle_leaves_nobody_waiting(start, closers: int) -> None:
    for _ in range(3):
        engine = start()
        ends: list[type[BaseException] | None] = []

        def call(engine: Engine = engine, ends: list[Any] = ends) -> None:
            try:
                while True:
                    engine.gauges()
                    greedy(engine, prompt_of(5), 30)
            except (EngineDead, RequestError) as error:
                ends.append(type(error))

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        with ThreadPoolExecutor(closers) as pool:
            for closing in [pool.submit(engine.close) for _ in range(closers)]:
                closing.result(20)
        for thread in threads:
            thread.join(10)
        assert ends == [EngineDead] * 8
        with pytest.raises(EngineDead):
            engine.abort("x")
