"""Case Q08: what arrives in bulk holds up nobody else."""

from __future__ import annotations

import json
import threading
import time

import httpx
import pytest

from tests.e2e.test_serve import Server, no_leak

MB = 2**20
BODIES = {
    "64 MB of prompt": ("/generate", {"text": "hello world " * (64 * MB // 12)}),
    "64 MB of chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a" * (64 * MB)}]},
    ),
    "100,000 messages": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}] * 100_000},
    ),
    "500,000 stop strings": (
        "/v1/completions",
        {"prompt": "a", "stop": [f"x{i}" for i in range(500_000)]},
    ),
}


@pytest.mark.slow
def test_q08_other_streams_and_health_go_on(tiny_model, tmp_path) -> None:
    running = Server(tiny_model, tmp_path / "log", "--max-body", str(100 * MB)).wait_ready()
    gaps: list[float] = []
    waits: list[float] = []
    done = threading.Event()

    def stream() -> None:
        params = {"max_new_tokens": 2000, "ignore_eos": True}
        body = {"text": "x", "stream": True, "sampling_params": params}
        while not done.is_set():
            with httpx.stream("POST", f"{running.url}/generate", json=body, timeout=60) as reply:
                last = time.monotonic()
                for _ in reply.iter_lines():
                    gaps.append(time.monotonic() - last)
                    last = time.monotonic()
                    if done.is_set():
                        return

    def probe() -> None:
        while not done.is_set():
            began = time.monotonic()
            assert httpx.get(f"{running.url}/health", timeout=10).status_code == 200
            waits.append(time.monotonic() - began)
            time.sleep(0.05)

    bodies = {name: (path, json.dumps(body).encode()) for name, (path, body) in BODIES.items()}
    threads = [threading.Thread(target=stream), threading.Thread(target=probe)]
    try:
        for thread in threads:
            thread.start()
        for name, (path, body) in bodies.items():
            headers = {"Content-Type": "application/json"}
            reply = httpx.post(f"{running.url}{path}", content=body, headers=headers, timeout=120)
            assert reply.status_code == 400, name
    finally:
        done.set()
        for thread in threads:
            thread.join()
    try:
        assert max(gaps) < 1
        assert max(waits) < 1
        no_leak(running)
    finally:
        running.stop()
