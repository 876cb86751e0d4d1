"""Life and death of a served model: loading, stopping, processes that are killed or held."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.test_engine import prompt_of
from tests.e2e.test_metrics import Since, scrape
from tests.e2e.test_process import is_running, wait_until
from tests.e2e.test_serve import Server, children, no_leak, post

LONG = {"max_new_tokens": 8000, "ignore_eos": True}


class Stream(threading.Thread):
    """A native stream read in a thread. lines: what has come; error: what broke it off."""

    def __init__(self, server: Server, tokens: int = 8000) -> None:
        super().__init__(daemon=True)
        self._url = f"{server.url}/generate"
        self._body = {
            "text": "x",
            "stream": True,
            "sampling_params": LONG | {"max_new_tokens": tokens},
        }
        self.lines: list[str] = []
        self.error: Exception | None = None
        self.start()
        wait_until(lambda: self.lines, 10)

    def run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=30) as reply:
                self.lines += (line for line in reply.iter_lines() if line)
        except httpx.TransportError as error:
            self.error = error

    def last(self, seconds: float) -> str:
        """The last line, once the stream has ended."""
        self.join(seconds)
        assert not self.is_alive()
        return self.lines[-1]


def status(server: Server, path: str = "/health", seconds: float = 1.0) -> int:
    return httpx.get(f"{server.url}{path}", timeout=seconds).status_code


def code(server: Server, path: str) -> str | None:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{server.url}{path}", timeout=1).json().get("error", {}).get("code")
    return None


def engine_of(server: Server) -> int:
    (engine,) = children(server.process.pid)
    return engine


@pytest.fixture(scope="module")
def supervised(tiny_model, tmp_path_factory) -> Iterator[Server]:
    running = Server(tiny_model, tmp_path_factory.mktemp("life") / "log", "--supervise")
    try:
        yield running.wait_ready()
    finally:
        running.stop()


@pytest.mark.parametrize("streaming", [False, True])
def test_an_engine_that_is_held_and_goes_on(supervised: Server, streaming: bool) -> None:
    """/health is 503 within 5 s and 200 again when it goes on; what was open got an error, and no
    page of it is left."""
    server, engine = supervised, engine_of(supervised)
    stream = Stream(server) if streaming else None
    os.kill(engine, signal.SIGSTOP)
    held = time.monotonic()
    try:
        wait_until(lambda: status(server) == 503, 6)
        assert time.monotonic() - held < 5.5
        assert status(server, "/ready") == 503
        assert scrape(server)["engine_up"] == 0
        reply = post(server, "/generate", text="x")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_dead")
        assert int(reply.headers["retry-after"]) >= 1
        if stream is not None:
            assert '"engine_dead"' in stream.last(1)
    finally:
        os.kill(engine, signal.SIGCONT)
    wait_until(lambda: status(server) == 200, 3)
    assert post(server, "/generate", text="x", sampling_params={"max_new_tokens": 2}).json()["text"]
    no_leak(server)
    assert engine_of(server) == engine, "it was not started anew"


@pytest.mark.parametrize("streaming", [False, True])
def test_a_killed_engine_is_started_again(supervised: Server, streaming: bool) -> None:
    server, engine = supervised, engine_of(supervised)
    grown = Since(server)
    post(server, "/generate", text="x", sampling_params={"max_new_tokens": 2})
    assert server.info()["steps"] >= 2
    stream = Stream(server) if streaming else None
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: status(server) == 503, 5)
    if stream is not None:
        assert '"engine_dead"' in stream.last(5)
    wait_until(lambda: status(server, "/ready") == 200, 40)
    assert engine_of(server) != engine
    assert not is_running(engine)
    assert post(server, "/generate", text="x", sampling_params={"max_new_tokens": 2}).json()["text"]
    no_leak(server)
    assert grown("engine_restarts_total") == 1
    assert grown("engine_steps_total") >= 4, "counters go on"
    assert grown("aborts_total{engine}") == streaming


def test_a_front_that_is_held_goes_on(supervised: Server) -> None:
    """While it stands still nobody answers; after SIGCONT its streams go on and nothing died."""
    server, engine = supervised, engine_of(supervised)
    stream = Stream(server)
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(5)
    with pytest.raises(httpx.TransportError):
        status(server)
    server.process.send_signal(signal.SIGCONT)
    seen = len(stream.lines)
    wait_until(lambda: len(stream.lines) > seen, 10)
    assert status(server, seconds=5) == 200
    assert engine_of(server) == engine
    post(server, "/abort_request", abort_all=True)
    assert stream.last(10) == "data: [DONE]"
    no_leak(server)


def test_o01_a_busy_engine_is_healthy(supervised: Server) -> None:
    """Steps full of prefill, one behind the other; the generating probe waits its turn. That
    /health waits for none is seen in how often it answers while one call is under way."""
    prompts = [prompt_of(4000, k) for k in range(6)]
    body = {"input_ids": prompts, "sampling_params": {"max_new_tokens": 1}}
    url = supervised.url
    with ThreadPoolExecutor(2) as pool, httpx.Client(base_url=url, timeout=240) as client:
        call = pool.submit(httpx.post, f"{url}/generate", json=body, timeout=240)
        probe = pool.submit(status, supervised, "/health_generate", 240)
        answers = 0
        while not call.done():
            assert client.get("/health").status_code == 200
            answers += 1
        assert call.result().status_code == probe.result() == 200
    assert answers > 2 * len(prompts)


def test_o03_probes_that_gave_up_leave_nothing(supervised: Server) -> None:
    grown = Since(supervised)
    engine = engine_of(supervised)
    os.kill(engine, signal.SIGSTOP)
    try:

        def probe(_: int) -> None:
            with contextlib.suppress(httpx.TimeoutException):
                status(supervised, "/health_generate", 1)

        with ThreadPoolExecutor(30) as pool:
            list(pool.map(probe, range(30)))
    finally:
        os.kill(engine, signal.SIGCONT)
    no_leak(supervised)
    assert supervised.info()["waiting"] == 0
    assert status(supervised, "/health_generate", 10) == 200
    assert grown("requests_total") == 0


@pytest.fixture(scope="module")
def strict(tiny_model, tmp_path_factory) -> Iterator[Server]:
    """Its steps are long and may not be; the last test here stops it."""
    flags = ["--token-budget", "8192", "--chunk", "8192", "--attention", "reference"]
    flags += ["--step-timeout-s", "0.2", "--grace", "60", "--log-format", "json"]
    running = Server(tiny_model, tmp_path_factory.mktemp("strict") / "log", *flags)
    try:
        yield running.wait_ready()
    finally:
        running.stop()


def test_a_long_step_is_healthy_until_the_limit(strict: Server) -> None:
    """One step of a long prefill: above --step-timeout-s the server is ill for as long as the step
    takes, and the request is answered all the same."""
    assert status(strict) == 200
    statuses: list[int] = []
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            statuses.append(status(strict))
            time.sleep(0.05)

    poller = threading.Thread(target=poll)
    poller.start()
    try:
        body = {"input_ids": prompt_of(4000, 3), "sampling_params": {"max_new_tokens": 1}}
        reply = post(strict, "/generate", **body)
        assert reply.status_code == 200
        assert reply.json()["meta_info"]["e2e_latency"] > 1, "too quick to prove anything"
        wait_until(lambda: statuses[-1] == 200, 3)
    finally:
        done.set()
        poller.join()
    assert 503 in statuses
    assert statuses[0] == 200


def ipc_folders() -> set[str]:
    return {path.name for path in pathlib.Path(tempfile.gettempdir()).glob("radixserve-*")}


def test_a_front_that_is_killed_leaves_nothing_and_another_takes_its_port(
    tiny_model, tmp_path
) -> None:
    """While the model loads, /health and /ready answer 503; a front killed amid a stream takes its
    engine and its ipc folder along, and the next one has the port at once."""
    before = ipc_folders()
    first = Server(tiny_model, tmp_path / "log", "--compiler-at-start")
    second: Server | None = None
    try:
        wait_until(lambda: code(first, "/health") == "loading", 20)
        assert code(first, "/ready") == "loading"
        reply = post(first, "/generate", text="x")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "loading")
        first.wait_ready()
        mine = ipc_folders() - before
        stream = Stream(first)
        front = psutil.Process(first.process.pid)
        # The engine, and what compiles grammars for it.
        wait_until(lambda: len(front.children(recursive=True)) == 2, 60)
        family = [each.pid for each in front.children(recursive=True)]
        first.process.kill()
        first.process.wait()
        stream.join(5)
        assert stream.error is not None
        second = Server(tiny_model, tmp_path / "second", port=first.port)
        second.wait_ready()
        wait_until(lambda: not any(map(is_running, family)))
        wait_until(lambda: not mine & ipc_folders())
        assert post(second, "/generate", text="x").status_code == 200
    finally:
        for server in (first, second):
            if server is not None:
                server.stop()


def test_stopping_lets_streams_end_and_refuses_new_calls(strict: Server) -> None:
    """SIGTERM with two streams: both end by themselves within the grace time, other calls are 503,
    the line of each call is JSON with its id, and the process exits with 0."""
    engine = engine_of(strict)
    streams = [Stream(strict, 800) for _ in range(2)]
    strict.process.send_signal(signal.SIGTERM)
    wait_until(lambda: code(strict, "/ready") == "stopping")
    assert all(stream.is_alive() for stream in streams)
    assert status(strict) == 200
    reply = httpx.post(
        f"{strict.url}/generate", json={"text": "x"}, headers={"X-Request-Id": "late-1"}
    )
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "stopping")
    assert [stream.last(40) for stream in streams] == ["data: [DONE]"] * 2
    assert all('"length"' in stream.lines[-2] for stream in streams)
    assert strict.process.wait(5) == 0
    assert not is_running(engine)
    lines = [json.loads(line) for line in strict.log.read_text().splitlines()]
    assert {line["process"] for line in lines} == {"front", "engine"}
    (late,) = [line for line in lines if line.get("request_id") == "late-1"]
    assert (late["status"], late["method"], late["path"]) == (503, "POST", "/generate")


def test_a_second_interrupt_ends_at_once(tiny_model, tmp_path) -> None:
    running = Server(tiny_model, tmp_path / "log", "--grace", "60")
    try:
        running.wait_ready()
        engine = engine_of(running)
        stream = Stream(running)
        running.process.send_signal(signal.SIGINT)
        wait_until(lambda: code(running, "/ready") == "stopping")
        running.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert running.process.wait(5) == 0
        assert time.monotonic() - began < 3
        stream.join(5)
        assert not stream.is_alive()
        assert not is_running(engine)
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", running.port))
    finally:
        running.stop()


@pytest.mark.skipif(not shutil.which("openssl"), reason="makes a certificate with openssl")
def test_tls(tiny_model, tmp_path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    running = Server(tiny_model, tmp_path / "log", "--ssl-certfile", str(cert), "--ssl-keyfile",
                     str(key))  # fmt: skip
    url = running.url.replace("http:", "https:")
    context: Any = ssl.create_default_context(cafile=str(cert))
    try:

        def ready() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{url}/ready", verify=context).status_code == 200
            return False

        wait_until(ready, 60)
        reply = httpx.post(f"{url}/generate", json={"text": "x"}, verify=context, timeout=20)
        assert reply.status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{running.url}/health")
    finally:
        running.stop()


@pytest.mark.slow
def test_an_idle_connection_is_kept(supervised: Server) -> None:
    """Longer than clients do: openai's keeps one for 5 s, and would lose a call sent as it ends."""
    connection = http.client.HTTPConnection("127.0.0.1", supervised.port, timeout=5)
    with contextlib.closing(connection):
        for pause in (0, 6):
            time.sleep(pause)
            connection.request("GET", "/health")
            reply = connection.getresponse()
            reply.read()
            assert reply.status == 200
