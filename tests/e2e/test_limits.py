"""What a served model refuses or ends: deadlines, full queues, clients that stand still."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from radixserve.chunks import Chunk, Request
from radixserve.config.flags import configure
from radixserve.errors import TimedOut
from radixserve.launch import Launched, launch
from radixserve.wire.messages import FinishReason
from radixserve.wire.params import SamplingParams
from tests.e2e.test_engine import prompt_of
from tests.e2e.test_metrics import Since, scrape
from tests.e2e.test_process import wait_until
from tests.e2e.test_serve import Server, no_leak, post

LONG = {"max_new_tokens": 7000, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tiny_model, tmp_path_factory) -> Iterator[Server]:
    flags = ("--max-running", "2", "--max-waiting", "2", "--reader-timeout", "1")
    flags += ("--body-timeout", "1", "--max-streams", "12")
    running = Server(tiny_model, tmp_path_factory.mktemp("limits") / "log", *flags)
    try:
        yield running.wait_ready()
    finally:
        running.stop()


def raw(path: str, body: dict, length: int | None = None) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length or len(data)}\r\n\r\n".encode() + data


def test_a_full_queue_is_429_with_retry_after(server: Server) -> None:
    """2 run and 2 wait; a fifth is refused, streamed or not, and the others live on."""
    grown = Since(server)
    with ThreadPoolExecutor(4) as pool:
        calls = []
        for count in (2, 4):  # what waits to run at once counts as waiting
            for k in range(len(calls), count):
                body = {"text": f"{k}", "rid": f"q{k}", "sampling_params": LONG}
                calls.append(pool.submit(post, server, "/generate", **body))
            wait_until(lambda n=count: (lambda i: i["running"] + i["waiting"] == n)(server.info()))
            wait_until(lambda: server.info()["running"] == 2)
        for stream in (False, True):
            reply = post(server, "/v1/completions", prompt="x", max_tokens=1, stream=stream)
            assert reply.status_code == 429
            assert reply.json()["error"]["code"] == "queue_full"
            assert int(reply.headers["retry-after"]) >= 1
        post(server, "/abort_request", abort_all=True)
        assert {call.result(20).status_code for call in calls} == {200}
    no_leak(server)
    assert grown("requests_total{refused}") == grown("http_responses_total{429}") == 2
    assert grown("requests_total{abort}") == 4


def test_a_client_that_stops_reading_is_dropped(server: Server) -> None:
    """Its pages are back long before its answer would have been whole, and its socket is closed,
    whether the kernel notices first that nothing is acknowledged or the server that it is stuck."""
    grown = Since(server)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        # Every event repeats the whole text: some megabytes, more than the kernel holds.
        client.sendall(raw("/generate", {"text": "x", "stream": True, "sampling_params": LONG}))
        wait_until(lambda: server.info()["running"] == 1)
        wait_until(lambda: grown("aborts_total{client}") == 1, 20)
        no_leak(server)
        wait_until(lambda: not connections(server.port, client.getsockname()[1]), 10)


def connections(port: int, peer: int) -> list[str]:
    """Lines of /proc/net/tcp about established connections between the two ports."""
    ends = f":{port:04X} ", f":{peer:04X} "
    with open("/proc/net/tcp") as file:
        lines = [line for line in file if ends[0] in line and ends[1] in line]
    local = [line for line in lines if line.split()[1].endswith(ends[0].strip())]
    return [line for line in local if line.split()[3] == "01"]


def test_a_body_that_does_not_come_is_408(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(raw("/generate", {"text": "x"}, length=100))
        client.settimeout(10)
        began = time.monotonic()
        answer = b""
        while piece := client.recv(4096):
            answer += piece
        assert b" 408 " in answer
        assert b'"body_timeout"' in answer
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"GET",
        b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + b"k" * 300_000,
    ],
    ids=["a TLS hello", "half a line", "an endless key"],
)
def test_what_is_no_http_gets_the_envelope(server: Server, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(sent + b"\r\n\r\n")
        client.settimeout(5)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := client.recv(4096):
                answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 400 " in head
    said = json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])
    assert said["error"]["code"] == "invalid_http"


def test_open_calls_have_a_limit_and_health_has_none(server: Server) -> None:
    with ThreadPoolExecutor(16) as pool:
        sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(12)]
        for client in sockets:
            client.sendall(raw("/generate", {"text": "x"}, length=100))  # bodies that do not come
        time.sleep(0.2)
        reply = pool.submit(post, server, "/generate", text="x").result()
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "too_busy")
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert scrape(server)["engine_up"] == 1
        for client in sockets:
            client.close()
    wait_until(lambda: post(server, "/generate", text="x").status_code == 200)


@pytest.mark.parametrize("seconds", [0.001, 0.3])
def test_a_deadline_over_http(server: Server, seconds: float) -> None:
    """OpenAI's dialect answers with an error, the native one with what there is."""
    grown = Since(server)
    for path, more in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
    ):
        body = more | {"timeout_s": seconds, "max_tokens": 7000, "ignore_eos": True}
        reply = post(server, path, **body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "timeout")
        lines = post(server, path, **body, stream=True).text.split("\n\n")
        assert '"code":"timeout"' in lines[-2]
    reply = post(server, "/generate", text="x", timeout_s=seconds, sampling_params=LONG)
    assert reply.status_code == 200
    meta = reply.json()["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert "deadline" in meta["finish_reason"]["message"]
    assert meta["completion_tokens"] < 7000
    assert grown("requests_total{timeout}") == grown("aborts_total{timeout}") == 5
    no_leak(server)


# ---- deadlines, below HTTP ----


@pytest.fixture(scope="module")
def run(tiny_model) -> Iterator[Callable]:
    """run(work): the result of work(launched) on the loop of a gateway with its own engine."""
    loop = asyncio.new_event_loop()
    config = configure(
        model=tiny_model, dtype="float32", threads=1, kv_tokens=8192, max_running=2, audit=True
    )
    launched: Launched = loop.run_until_complete(launch(config))
    try:
        yield lambda work: loop.run_until_complete(asyncio.wait_for(work(launched), 30))
    finally:
        loop.run_until_complete(launched.close())
        loop.close()


def request(seconds: float | None, **more) -> Request:
    prompt, rid = more.pop("prompt", prompt_of(9)), more.pop("rid", None)
    ids = b"".join(token.to_bytes(4, "little") for token in prompt)
    params = SamplingParams(max_new_tokens=7000, ignore_eos=True, **more)
    return Request(prompt=ids, params=params, timeout_s=seconds, rid=rid)


async def ended(launched: Launched, asked: Request) -> list[Chunk]:
    """The last chunk of each output."""
    async with contextlib.aclosing(launched.gateway.submit(asked)) as chunks:
        return [chunk async for chunk in chunks if chunk.finish is not None]


async def no_leak_inside(launched: Launched) -> None:
    gauges = await launched.gateway.gauges()
    assert (gauges.running, gauges.waiting, gauges.locked_tokens) == (0, 0, 0)
    assert launched.gateway.in_flight == 0
    assert not launched.gateway._flights


@pytest.mark.parametrize("n", [1, 2])
def test_a_deadline_ends_a_request_with_what_it_has(run, n: int) -> None:
    async def work(launched: Launched) -> None:
        began = time.monotonic()
        chunks = await ended(launched, request(0.3, n=n))
        assert 0.3 <= time.monotonic() - began < 3
        assert [c.finish.reason for c in chunks if c.finish] == [FinishReason.TIMEOUT] * n
        assert all(0 < c.finish.usage.completion_tokens < 7000 for c in chunks if c.finish)
        await no_leak_inside(launched)

    run(work)


@pytest.mark.parametrize("seconds", [0.0, 0.001])
def test_a_deadline_that_is_over_at_once(run, seconds: float) -> None:
    async def work(launched: Launched) -> None:
        (chunk,) = await ended(launched, request(seconds))
        assert chunk.finish is not None
        assert chunk.finish.reason is FinishReason.TIMEOUT
        await no_leak_inside(launched)

    run(work)


def test_a_deadline_holds_in_the_queue_too(run) -> None:
    async def work(launched: Launched) -> None:
        names = ("one", "two")
        others = [asyncio.create_task(ended(launched, request(None, rid=name))) for name in names]
        await asyncio.sleep(0.1)
        (chunk,) = await ended(launched, request(0.2))
        assert chunk.finish is not None
        assert chunk.finish.reason is FinishReason.TIMEOUT
        assert chunk.finish.usage.completion_tokens == 0
        for name in names:
            launched.gateway.abort(name)
        ends = [chunk for each in await asyncio.gather(*others) for chunk in each]
        assert {c.finish.reason for c in ends if c.finish} == {FinishReason.ABORT}
        await no_leak_inside(launched)

    run(work)


def test_a_deadline_does_not_wait_for_an_engine_that_stands_still(run) -> None:
    """SIGSTOP for less than what counts as silence: the caller gets TimedOut, the pages come back
    when the engine goes on."""

    async def work(launched: Launched) -> None:
        pid = launched.gateway.info.pid
        stopper = threading.Timer(0.2, os.kill, (pid, signal.SIGSTOP))
        stopper.start()
        began = time.monotonic()
        try:
            with pytest.raises(TimedOut):
                await ended(launched, request(0.4))
            assert time.monotonic() - began < 2
        finally:
            os.kill(pid, signal.SIGCONT)
        await no_leak_inside(launched)

    run(work)
