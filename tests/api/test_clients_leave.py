"""Clients that go away, and streams that wait: one ASGI request at a time."""

from __future__ import annotations

import asyncio
import json

import pytest

from radixserve.api.app import create_app
from radixserve.config.schema import Config, HttpConfig
from radixserve.metrics.prometheus import Metrics
from tests.api import anthropic_talk, response_talk
from tests.api.scripted import ScriptedGateway
from tests.api.talk import CHAT, COMPLETIONS, ask, events_of, hello

CALLS = {
    CHAT: hello(),
    COMPLETIONS: {"prompt": ["a", "b"]},
    "/generate": {"text": ["a", "b"]},
    anthropic_talk.MESSAGES: anthropic_talk.body(),
    response_talk.RESPONSES: response_talk.body(),
}


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer)


class LeavingClient:
    """One ASGI request whose client goes away when told."""

    def __init__(self, gateway: ScriptedGateway, path: str, body: dict, **http) -> None:
        self.metrics = Metrics()
        self._app = create_app(gateway, Config(http=HttpConfig(**http)), metrics=self.metrics)
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "server": ("test", 80),
            "client": ("me", 1),
            "headers": [(b"content-type", b"application/json")],
        }
        self._body = json.dumps(body).encode()
        self._sent_body = False
        self.reads = asyncio.Event()
        self.reads.set()
        self.left = asyncio.Event()
        self.messages: list[dict] = []

    async def _receive(self):
        if not self._sent_body:
            self._sent_body = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if self.left.is_set():
            raise OSError("the connection is closed")
        await self.reads.wait()
        self.messages.append(message)

    def start(self) -> asyncio.Task:
        return asyncio.create_task(self._app(self._scope, self._receive, self._send))


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("moment", ["before acceptance", "after some tokens"])
def test_s10_a_client_that_goes_away_ends_its_call(gateway, path, stream, moment):
    async def go():
        gate = asyncio.Event()
        if moment == "before acceptance":
            gateway.start_gate = gate
        else:
            gateway.gate = gate
        leaving = LeavingClient(gateway, path, {**CALLS[path], "stream": stream, "rid": "r"})
        served = leaving.start()
        while not gateway.running:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        assert gateway.closed_early == []
        has_begun = stream and moment == "after some tokens"
        assert bool(leaving.messages) is has_begun
        leaving.left.set()
        await asyncio.wait([served], timeout=2)
        assert served.done()

    asyncio.run(go())
    assert gateway.running == 0
    assert len(gateway.closed_early) == len(gateway.requests)


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("stream", [False, True])
def test_s10_normal_ends_abort_nothing(gateway, path, stream):
    for _ in range(10):
        assert ask(gateway, path, {**CALLS[path], "stream": stream}).status_code == 200
    assert gateway.closed_early == []


def test_headers_go_out_on_acceptance_while_all_text_is_held_back(gateway):
    async def go():
        gateway.gate = asyncio.Event()
        body = {"prompt": "x", "stream": True, "stop": "the quick brown fox"}
        leaving = LeavingClient(gateway, COMPLETIONS, body)
        served = leaving.start()
        await asyncio.sleep(0.05)
        early = list(leaving.messages)
        gateway.gate.set()
        await served
        return early, leaving.messages

    early, messages = asyncio.run(go())
    assert [message["type"] for message in early] == ["http.response.start"]
    assert early[0]["status"] == 200
    assert dict(early[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
    text = b"".join(message.get("body", b"") for message in messages).decode()
    (last,) = events_of(text, done=True)
    assert last["choices"][0]["text"] == ""
    assert last["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", CALLS)
def test_a_client_that_stops_reading_is_given_up(gateway, path, stream):
    async def go():
        gateway.gate = asyncio.Event()
        standing = LeavingClient(
            gateway, path, {**CALLS[path], "stream": stream}, reader_timeout=0.05
        )
        served = standing.start()
        while not gateway.running:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        standing.reads.clear()
        gateway.gate.set()
        await asyncio.wait_for(served, 2)
        return standing.metrics.scrape()[0]

    text = asyncio.run(go())
    assert b"radixserve_slow_readers_total 1.0" in text
    assert gateway.running == 0


def test_a_client_that_reads_slowly_keeps_its_stream(gateway):
    async def go():
        slow = LeavingClient(gateway, CHAT, hello(stream=True), reader_timeout=0.2)
        served = slow.start()
        for _ in range(5):
            slow.reads.clear()
            await asyncio.sleep(0.02)
            slow.reads.set()
        await asyncio.wait_for(served, 2)
        return b"".join(message.get("body", b"") for message in slow.messages).decode()

    assert events_of(asyncio.run(go()), done=True)
    assert gateway.closed_early == []
