"""The engine as a child process: isolation, load, death."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from radixserve.engine import Engine
from radixserve.errors import EngineDead, ModelLoadError
from tests.e2e.conftest import check_no_leak
from tests.e2e.test_engine import GREEDY, greedy, prompt_of


def child_pid(engine: Any) -> int:
    return engine._launched.gateway.info.pid


def test_the_front_has_no_torch(tiny_model) -> None:
    """A user's process that imports radixserve, serves and generates never loads torch."""
    code = f"""
import sys
import radixserve as rs
assert "torch" not in sys.modules
with rs.Engine({str(tiny_model)!r}, kv_tokens=512, dtype="float32", threads=1) as engine:
    reply = engine.generate("hello", {{"max_new_tokens": 2, "ignore_eos": True}})
    assert len(reply["output_ids"]) == 2
import radixserve.api.server, radixserve.cli
heavy = [m for m in ("torch", "transformers", "triton", "xgrammar") if m in sys.modules]
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_200_streams_with_random_aborts(start) -> None:
    rng = random.Random(7)
    shared = prompt_of(64, 1)
    plans = [
        (
            [*shared[: rng.randrange(65)], *prompt_of(rng.randrange(1, 30), k)],
            rng.choice([0, rng.randrange(1, 20)]),
        )
        for k in range(200)
    ]
    with start(inline=False, kv_tokens=8192, max_running=32, audit=False) as engine:

        async def one(ids: list[int], stop_after: int) -> str:
            rid = f"r{rng.random()}"
            seen = 0
            last: dict[str, Any] = {}
            # Long enough that an abort comes before the end, however slow this machine is.
            length = 600 if stop_after else 24
            stream = engine.async_stream(
                input_ids=ids, rid=rid, sampling_params=GREEDY | {"max_new_tokens": length}
            )
            async for chunk in stream:
                last = chunk
                seen += 1
                if seen == stop_after:
                    if stop_after % 2:
                        await stream.aclose()
                        return "closed"
                    engine.abort(rid)
            return str(last["meta_info"]["finish_reason"]["type"])

        async def run() -> list[str]:
            return await asyncio.gather(*(one(*plan) for plan in plans))

        ends = asyncio.run(run())
        assert set(ends) <= {"length", "abort", "closed"}
        assert ends.count("length") > 20
        assert ends.count("abort") > 10
        assert ends.count("closed") > 10
        wait_until(lambda: engine.gauges().running == 0)
        check_no_leak(engine)
        reply = greedy(engine, plans[0][0], 3)
        assert len(reply["output_ids"]) == 3


def wait_until(condition: Any, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_silent_engine_fails_open_requests(start, number: signal.Signals) -> None:
    """Within 5 s, with an error; later requests are refused at once."""
    engine = start(inline=False)
    pid = child_pid(engine)
    try:
        failures: list[tuple[float, BaseException]] = []

        def consume() -> None:
            try:
                for _ in engine.stream(
                    input_ids=prompt_of(9), sampling_params=GREEDY | {"max_new_tokens": 5000}
                ):
                    pass
            except EngineDead as error:
                failures.append((time.monotonic(), error))

        threads = [threading.Thread(target=consume) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: engine.gauges().running == 3)
        killed = time.monotonic()
        os.kill(pid, number)
        for thread in threads:
            thread.join(10)
        assert len(failures) == 3
        assert max(at for at, _ in failures) - killed < 5.0
        assert not engine._launched.gateway.alive
        with pytest.raises(EngineDead):
            greedy(engine, [5, 6])
    finally:
        if number is signal.SIGSTOP:
            os.kill(pid, signal.SIGKILL)
        engine.close()


def test_the_child_dies_with_its_parent(tiny_model) -> None:
    code = f"""
import radixserve as rs, time
engine = rs.Engine({str(tiny_model)!r}, kv_tokens=512, dtype="float32", threads=1)
print(engine._launched.gateway.info.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not is_running(child))


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_model_that_cannot_load_says_why(tmp_path) -> None:
    with pytest.raises(ModelLoadError, match="nowhere"):
        Engine(str(tmp_path / "nowhere"))
