"""`radixserve serve` as its users meet it: a process, a port, clients."""

from __future__ import annotations

import json
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.e2e.test_engine import prompt_of
from tests.e2e.test_process import is_running, wait_until


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A served process; `log` is what it wrote to standard error."""

    def __init__(
        self, model: pathlib.Path, log: pathlib.Path, *flags: str, port: int | None = None
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        command = [sys.executable, "-m", "radixserve.cli", "serve", "--model", str(model)]
        command += ["--served-name", "tiny", "--port", str(self.port), "--dtype", "float32"]
        command += ["--threads", "1", "--kv-tokens", "16384", *flags]
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stderr=file)

    def wait_ready(self) -> Server:
        deadline = time.monotonic() + 180
        while True:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            try:
                if httpx.get(f"{self.url}/health", timeout=1).status_code == 200:
                    return self
            except httpx.TransportError:
                time.sleep(0.1)

    def info(self) -> dict[str, Any]:
        return httpx.get(f"{self.url}/server_info", timeout=10).json()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def server(tiny_model, tmp_path_factory) -> Iterator[Server]:
    running = Server(tiny_model, tmp_path_factory.mktemp("serve") / "log")
    try:
        yield running.wait_ready()
    finally:
        running.stop()


def post(server: Server, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=60)


def no_leak(server: Server) -> None:
    wait_until(lambda: server.info()["running"] == 0, 2.0)
    info = server.info()
    assert (info["running"], info["waiting"], info["locked_tokens"]) == (0, 0, 0)
    assert info["free_tokens"] + info["evictable_tokens"] == info["kv_tokens"]


def test_the_official_client_for_chat(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    messages = [{"role": "user", "content": "the quick brown fox"}]
    options = {"model": "tiny", "messages": messages, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**options)
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    parts = list(
        client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == whole.choices[0].message.content
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert parts[-1].usage.prompt_tokens_details.cached_tokens > 0
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_the_official_client_for_completions(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    options = {"model": "tiny", "prompt": "the quick", "max_tokens": 9, "temperature": 0}
    whole = client.completions.create(**options)
    text = "".join(
        part.choices[0].text for part in client.completions.create(**options, stream=True)
    )
    assert text == whole.choices[0].text
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**options, suffix="x")
    assert caught.value.param == "suffix"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(**{**options, "model": "other"})


@pytest.mark.parametrize("common", [512, 519, 527])
def test_sharing_over_http(server: Server, common: int) -> None:
    shared = prompt_of(common, common)
    before = server.info()
    with ThreadPoolExecutor(8) as pool:
        replies = list(
            pool.map(
                lambda k: post(
                    server, "/generate", input_ids=[*shared, *prompt_of(20, k)],
                    sampling_params={"max_new_tokens": 2, "temperature": 0, "ignore_eos": True},
                ).json(),
                range(8),
            )
        )  # fmt: skip
    computed = server.info()["computed_tokens"] - before["computed_tokens"]
    full = common - common % 16
    assert computed <= full + 8 * (common - full + 20)
    assert all(len(reply["output_ids"]) == 2 for reply in replies)
    no_leak(server)


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_s10_a_client_that_goes_away(server: Server, path: str, stream: bool) -> None:
    body: dict[str, Any] = {"stream": stream}
    if path == "/generate":
        body |= {
            "text": "the quick",
            "sampling_params": {"max_new_tokens": 8000, "ignore_eos": True},
        }
    else:
        body |= {"model": "tiny", "prompt": "the", "max_tokens": 8000, "ignore_eos": True, "n": 2}
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        data = json.dumps(body).encode()
        connection.sendall(
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (path.encode(), len(data), data)
        )
        if stream:
            assert b"200" in connection.recv(256)
        wait_until(lambda: server.info()["running"] > 0)
    no_leak(server)
    assert post(server, "/generate", text="x", sampling_params={"max_new_tokens": 1}).json()["text"]


def test_the_port_in_use_is_found_before_the_model_loads(server: Server, tiny_model) -> None:
    started = time.monotonic()
    second = subprocess.run(
        [sys.executable, "-m", "radixserve.cli", "serve", "--model", str(tiny_model),
         "--port", str(server.port)],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert second.returncode == 1
    assert "cannot listen" in second.stderr
    assert "engine" not in second.stderr
    assert time.monotonic() - started < 10


def test_health_is_503_when_the_engine_is_dead(tiny_model, tmp_path) -> None:
    running = Server(tiny_model, tmp_path / "log").wait_ready()
    try:
        child = children(running.process.pid)[0]
        with httpx.stream(
            "POST", f"{running.url}/generate", timeout=20,
            json={"text": "x", "stream": True,
                  "sampling_params": {"max_new_tokens": 8000, "ignore_eos": True}},
        ) as reply:  # fmt: skip
            lines = reply.iter_lines()
            next(lines)
            subprocess.run(["kill", "-9", str(child)], check=True)
            last = [line for line in lines if line][-1]
        assert "error" in last
        wait_until(lambda: httpx.get(f"{running.url}/health").status_code == 503)
        assert post(running, "/generate", text="x").status_code == 503
        assert set(post(running, "/generate", text="x").json()["error"]) == {
            "message", "type", "param", "code",
        }  # fmt: skip
    finally:
        running.stop()


def children(pid: int) -> list[int]:
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


@pytest.mark.parametrize("when", ["loading", "idle", "streaming"])
def test_o04_sigterm_ends_cleanly(tiny_model, tmp_path, when: str) -> None:
    """Exit 0; streams end with an event; no child, no ipc folder; the port is free again."""
    running = Server(tiny_model, tmp_path / "log", "--grace", "1")
    try:
        if when != "loading":
            running.wait_ready()
        else:
            time.sleep(1.5)
        started = children(running.process.pid)
        if when == "streaming":
            with httpx.stream(
                "POST", f"{running.url}/generate", timeout=20,
                json={"text": "x", "stream": True,
                      "sampling_params": {"max_new_tokens": 8000, "ignore_eos": True}},
            ) as reply:  # fmt: skip
                lines = reply.iter_lines()
                next(lines)
                running.process.send_signal(signal.SIGTERM)
                rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]" or '"error"' in rest[-1]
        else:
            running.process.send_signal(signal.SIGTERM)
        code = running.process.wait(15)
        # Before Python has read its modules no handler stands, and the signal's own action ends it.
        assert code == 0 or (when == "loading" and code == -signal.SIGTERM), running.log.read_text()
        assert not [pid for pid in started if is_running(pid)]
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", running.port))
    finally:
        running.stop()


def test_o04_sigterm_while_a_grammar_compiles(tiny_model, tmp_path) -> None:
    """The call that waits for it gets an answer, the process that compiles ends with the rest."""
    running = Server(tiny_model, tmp_path / "log", "--grace", "1")
    schema = {"enum": [f"value {i}" for i in range(4000)]}
    params = {"json_schema": schema, "max_new_tokens": 8}
    try:
        running.wait_ready()
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(post, running, "/generate", text="x", sampling_params=params)
            front = psutil.Process(running.process.pid)
            wait_until(lambda: len(front.children(recursive=True)) > 1, 20)
            assert not call.done(), call.result().text
            family = front.children(recursive=True)
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(15) == 0, running.log.read_text()
            assert call.result().status_code in (200, 503)  # aborted, or the engine is gone
        assert not [child.pid for child in family if is_running(child.pid)]
    finally:
        running.stop()
