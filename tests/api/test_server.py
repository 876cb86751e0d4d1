"""The server around the dialects: key, health, errors of every kind, clients that go away."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from radixserve.api.app import create_app
from radixserve.api.server import _listen
from radixserve.config.schema import Config, HttpConfig
from radixserve.errors import Cancelled, InternalError, InvalidRequest, QueueFull
from tests.api.scripted import MODEL, ScriptedGateway, client
from tests.api.talk import CHAT, COMPLETIONS, ask, error_of, events_of, hello

KEY = "sécret key"
CALLS = {
    CHAT: hello(),
    COMPLETIONS: {"prompt": ["a", "b"]},
    "/generate": {"text": ["a", "b"]},
}


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer)


def routes_of(app):
    """(method, path) of every registered route."""
    found = []
    left = list(app.routes)
    while left:
        route = left.pop()
        inner = getattr(route, "original_router", None) or getattr(route, "router", None)
        if inner is not None:
            left += inner.routes
        for method in getattr(route, "methods", None) or ():
            found.append((method, route.path.replace("{name:path}", MODEL)))
    return sorted(found)


def test_the_walk_over_the_routes_finds_them(gateway):
    found = routes_of(create_app(gateway, Config()))
    for known in (("POST", CHAT), ("GET", f"/v1/models/{MODEL}"), ("GET", "/flush_cache")):
        assert known in found
    assert len(found) >= 14


# ---- the key ----


def statuses(gateway, requests):
    """Status and headers of (method, path, headers) requests to an app with KEY."""

    async def go():
        async with client(gateway, api_key=(KEY,)) as http_client:
            return [
                await http_client.request(method, path, headers=headers)
                for method, path, headers in requests
            ]

    return asyncio.run(go())


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong",
        b"Basic " + KEY.encode(),
        KEY.encode(),
        b"Bearer  " + KEY.encode(),
        b"Bearer " + KEY.encode() + b"x",
        b"Bearer " + KEY.encode()[:-1],
        b"Bearer " + KEY.encode("latin-1"),
        b"Bearer " + b"k" * 10_000_000,
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_o07_without_the_key_nothing_but_the_public_routes_answers(gateway, value):
    headers = [] if value is None else [(b"authorization", value)]
    walked = routes_of(create_app(gateway, Config()))
    asked = [(method, path, headers) for method, path in walked]
    asked += [(method, path, headers) for method, path in [
        ("GET", "/nope"), ("HEAD", CHAT), ("OPTIONS", CHAT), ("POST", "//v1/chat/completions"),
        ("POST", "/v1/../generate"), ("GET", "/health/"), ("GET", "/Health"), ("GET", "/docs"),
        ("GET", "/openapi.json"), ("GET", "/health?x=/generate"),
    ]]  # fmt: skip
    for (method, path, _), response in zip(asked, statuses(gateway, asked), strict=True):
        if path.partition("?")[0] in ("/health", "/ready", "/metrics"):
            assert response.status_code == 200
            continue
        assert response.status_code == 401, (method, path)
        assert response.headers["www-authenticate"] == "Bearer"
        assert KEY not in response.text
        if method != "HEAD":
            assert response.json()["error"]["type"] == "authentication_error"
    assert gateway.flushed == 0


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer "])
def test_o07_with_the_key_everything_answers(gateway, scheme):
    headers = [(b"authorization", scheme + KEY.encode())]
    asked = [(*route, headers) for route in routes_of(create_app(gateway, Config()))]
    found = {response.status_code for response in statuses(gateway, asked)}
    assert 401 not in found
    assert 200 in found


def test_two_keys_are_none(gateway):
    headers = [(b"authorization", b"Bearer " + KEY.encode())] * 2
    assert statuses(gateway, [("GET", "/v1/models", headers)])[0].status_code == 401


def test_the_key_is_not_told(gateway):
    headers = [(b"authorization", b"Bearer " + KEY.encode())]
    (response,) = statuses(gateway, [("GET", "/server_info", headers)])
    assert response.status_code == 200
    assert KEY not in json.dumps(response.json(), ensure_ascii=False)


# ---- models, health, information ----


def test_a12_models(gateway):
    (listed,) = ask(gateway, "/v1/models", None, "GET").json()["data"]
    assert listed["id"] == MODEL
    assert ask(gateway, f"/v1/models/{listed['id']}", None, "GET").json() == listed
    error = error_of(ask(gateway, "/v1/models/other/one", None, "GET"), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_call_names_the_served_model_or_none(gateway, path):
    body = CALLS[path]
    for name in (MODEL, None):
        assert ask(gateway, path, {**body, "model": name}).status_code == 200
    for stream in (False, True):
        response = ask(gateway, path, {**body, "model": "gpt-4", "stream": stream})
        assert error_of(response, 404)["code"] == "model_not_found"


def test_health_follows_the_engine(gateway):
    assert ask(gateway, "/health", None, "GET").status_code == 200
    assert ask(gateway, "/health_generate", None, "GET").status_code == 200
    for path in ("/health", "/ready", "/metrics", "/health_generate"):
        assert ask(gateway, path, None, "HEAD").status_code == 200
    gateway.alive = False
    for path in ("/health", "/health_generate"):
        assert error_of(ask(gateway, path, None, "GET"), 503)["code"] == "engine_dead"
        assert ask(gateway, path, None, "HEAD").status_code == 503
    for path, body in CALLS.items():
        for stream in (False, True):
            response = ask(gateway, path, {**body, "stream": stream})
            assert error_of(response, 503)["type"] == "server_error"


def test_o03_probes_do_not_pile_up(gateway):
    async def go():
        gateway.start_gate = asyncio.Event()
        async with client(gateway) as http_client:
            probes = [asyncio.create_task(http_client.get("/health_generate")) for _ in range(30)]
            while not gateway.running:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)
            assert len(gateway.requests) == 1
            for probe in probes[:29]:
                probe.cancel()
            await asyncio.sleep(0.01)
            assert gateway.running == 1
            gateway.start_gate.set()
            assert (await probes[29]).status_code == 200
            gateway.start_gate.clear()
            last = asyncio.create_task(http_client.get("/health_generate"))
            while gateway.running < 1:
                await asyncio.sleep(0.001)
            last.cancel()
            await asyncio.sleep(0.02)
            assert gateway.running == 0

    asyncio.run(go())


@pytest.mark.parametrize("turns", range(12))
def test_a_probe_does_not_join_one_that_is_ending(gateway, turns):
    async def go():
        gateway.start_gate = asyncio.Event()
        async with client(gateway) as http_client:
            first = asyncio.create_task(http_client.get("/health_generate"))
            while not gateway.running:
                await asyncio.sleep(0.001)
            first.cancel()
            for _ in range(turns):
                await asyncio.sleep(0)
            second = asyncio.create_task(http_client.get("/health_generate"))
            await asyncio.sleep(0.005)
            gateway.start_gate.set()
            assert (await second).status_code == 200

    asyncio.run(go())


def test_information(gateway):
    info = ask(gateway, "/get_model_info", None, "GET").json()
    assert info["model_path"] == MODEL
    assert info["is_generation"] is True
    assert info["eos_ids"] == [2]
    for path in ("/server_info", "/get_server_info"):
        server = ask(gateway, path, None, "GET").json()
        assert (server["kv_tokens"], server["steps"], server["running"]) == (100_000, 7, 0)
        assert server["config"]["cache"]["page_size"] == 16
        assert server["version"]


def test_flushing(gateway):
    for method in ("GET", "POST"):
        assert ask(gateway, "/flush_cache", None, method).json()["flushed_tokens"] == 48
    assert gateway.flushed == 2


# ---- errors ----


def test_errors_quote_no_more_than_they_need(gateway):
    error = error_of(ask(gateway, CHAT, hello(model="x" * 100_000)), 404)
    assert len(error["message"]) < 2100


def test_errors_of_the_framework_have_the_envelope(gateway):
    assert error_of(ask(gateway, "/nope", {}), 404)["code"] == "not_found"
    assert error_of(ask(gateway, "/v1/models/", {}, "GET"), 404)
    response = ask(gateway, CHAT, None, "GET")
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (InvalidRequest("no", param="x"), "invalid_request_error"),
        (QueueFull("full"), "rate_limit_error"),
        (Cancelled("gone"), "cancelled_error"),
    ],
)
def test_a_refusal_before_the_first_chunk_has_its_status(gateway, path, stream, refusal, kind):
    gateway.refusal = refusal
    response = ask(gateway, path, {**CALLS[path], "stream": stream})
    error = error_of(response, refusal.status)
    assert (error["type"], error["code"], error["param"]) == (kind, refusal.code, refusal.param)
    assert gateway.running == 0


# The last is one that something else was ended by, not the request.
FAILURES = [InternalError("broke"), ZeroDivisionError("secret"), asyncio.CancelledError("secret")]


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_a_failure_in_a_stream_is_its_last_event(gateway, path, failure):
    gateway.failure = failure
    response = ask(gateway, path, {**CALLS[path], "stream": True})
    assert response.status_code == 200
    *before, last = events_of(response.text, done=False)
    assert before
    assert all("error" not in event for event in before)
    assert last["error"]["type"] == "server_error"
    assert "secret" not in response.text
    assert gateway.running == 0


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_a_failure_without_a_stream_is_a_500(gateway, path, failure):
    gateway.failure = failure
    response = ask(gateway, path, CALLS[path])
    assert error_of(response, 500)["code"] == "internal_error"
    assert "secret" not in response.text
    gateway.failure = None
    assert ask(gateway, path, CALLS[path]).status_code == 200


# ---- aborts ----


@pytest.mark.parametrize("path", [CHAT, "/generate"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("everything", [False, True])
def test_an_abort_ends_a_call(gateway, path, stream, everything):
    gateway.gate = asyncio.Event()
    body = {**CALLS[path], "rid": "mine", "stream": stream}

    async def go():
        async with client(gateway) as http_client:
            call = asyncio.create_task(http_client.post(path, json=body))
            while not gateway.running:
                await asyncio.sleep(0.001)
            await http_client.post("/abort_request", json={"rid": "another"})
            await asyncio.sleep(0.01)
            assert not call.done()
            abort = {"abort_all": True} if everything else {"rid": "mine"}
            assert (await http_client.post("/abort_request", json=abort)).status_code == 200
            return await call

    response = asyncio.run(go())
    if path == "/generate":
        replies = events_of(response.text, done=True) if stream else response.json()
        assert replies[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    elif stream:
        *_, last = events_of(response.text, done=False)
        assert last["error"]["code"] == "cancelled"
    else:
        assert error_of(response, 499)["code"] == "cancelled"
    assert gateway.running == 0


@pytest.mark.parametrize("body", [{}, {"rid": ""}, {"rid": "a", "abort_all": True}, {"rid": 5}])
def test_aborts_that_say_nothing(gateway, body):
    assert error_of(ask(gateway, "/abort_request", body), 400)["param"] == "rid"


def test_no_answer_waits_for_an_acknowledgement():
    """Nagle's algorithm holds back what follows the headers of an answer."""

    async def no_delay() -> int:
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_, writer):
            own = writer.get_extra_info("socket")
            seen.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        server = await asyncio.start_server(connected, sock=_listen(HttpConfig(port=0)))
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            found = await seen
            writer.close()
            await writer.wait_closed()
        return found

    assert asyncio.run(no_delay())
