"""Keys with limits, the phases of a server, deadlines."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from radixserve.api.app import create_app
from radixserve.api.life import Life
from radixserve.config.schema import Config, HttpConfig, ModelConfig
from radixserve.errors import QueueFull
from radixserve.warm import read_prompts, warm_up
from tests.api.scripted import MODEL, ScriptedGateway, client
from tests.api.talk import CHAT, ask, error_of, events_of, hello

KEYS = {
    "alice": {"key": "a", "namespace": "alice", "max_priority": 2},
    "bob": {"key": "b", "namespace": "bob"},
    "bob2": {"key": "b2", "namespace": "bob"},
    "slow": {"key": "s", "requests_per_minute": 2},
    "small": {"key": "t", "tokens_per_minute": 40},
    "one": {"key": "o", "concurrent": 1},
    "root": {"key": "r", "admin": True, "requests_per_minute": 1, "concurrent": 1},
}
TEXT = {"text": "the quick brown fox jumps over"}


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer)


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": KEYS}))
    return str(path)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def with_client(gateway, go, **http):
    """go(client) on an app with these settings."""

    async def run():
        async with client(gateway, **http) as http_client:
            return await go(http_client)

    return asyncio.run(run())


# ---- keys ----


def test_admin_routes_need_an_admins_key(gateway, key_file):
    async def go(http_client):
        for key, status in (("a", 403), ("r", 200)):
            headers = bearer(key)
            for method, path, body in (
                ("POST", "/flush_cache", None),
                ("GET", "/flush_cache", None),
                ("POST", "/abort_request", {"abort_all": True}),
            ):
                response = await http_client.request(method, path, json=body, headers=headers)
                if status == 403:
                    assert error_of(response, 403)["type"] == "permission_error"
                else:
                    assert response.status_code == 200
            cache = await http_client.get("/v1/cache/nothing-yet", headers=headers)
            assert cache.status_code == (403 if key == "a" else 404)

    with_client(gateway, go, api_key_file=key_file)
    assert gateway.flushed == 2


def test_keys_of_flags_are_no_admins(gateway):
    async def go(http_client):
        plain = await http_client.post("/flush_cache", headers=bearer("plain"))
        admin = await http_client.post("/flush_cache", headers=bearer("boss"))
        return plain.status_code, admin.status_code

    http = {"api_key": ("plain",), "admin_key": ("boss",)}
    assert with_client(gateway, go, **http) == (403, 200)


def test_a_scraper_may_need_a_key(gateway):
    async def go(http_client):
        paths = ("/health", "/ready", "/metrics")
        open_ = [(await http_client.get(path)).status_code for path in paths]
        with_key = await http_client.get("/metrics", headers=bearer("k"))
        return open_, with_key.status_code

    http = {"api_key": ("k",)}
    assert with_client(gateway, go, **http) == ([200, 200, 200], 200)
    assert with_client(gateway, go, **http, public_metrics=False) == ([200, 200, 401], 200)


def test_tenants_never_share_a_prefix(gateway, key_file):
    """Nor does a salt of one reach the namespace of another."""

    async def go(http_client):
        cached = []
        for key, extra in (
            ("a", {}), ("a", {}), ("b", {}), ("s", {}), ("b2", {}),
            ("s", {"cache_salt": "@5:alice"}),
            ("a", {"cache_salt": "x"}), ("a", {"cache_salt": "x"}),
        ):  # fmt: skip
            reply = await http_client.post("/generate", json=TEXT | extra, headers=bearer(key))
            cached.append(reply.json()["meta_info"]["cached_tokens"] > 0)
        return cached

    found = with_client(gateway, go, api_key_file=key_file)
    assert found == [False, True, False, False, True, False, False, True]


def test_warm_prompts_meet_the_keys_of_their_namespace(gateway, key_file, tmp_path, renderer):
    path = tmp_path / "warm.jsonl"
    path.write_text(json.dumps(TEXT | {"namespace": "alice"}))
    asyncio.run(warm_up(read_prompts(str(path), renderer), gateway.submit))

    async def go(http_client):
        cached = []
        for key in ("b", "s", "a"):
            reply = await http_client.post("/generate", json=TEXT, headers=bearer(key))
            cached.append(reply.json()["meta_info"]["cached_tokens"] > 0)
        return cached

    assert with_client(gateway, go, api_key_file=key_file) == [False, False, True]


def test_requests_a_minute(gateway, key_file):
    async def go(http_client):
        return [
            await http_client.post("/generate", json=TEXT, headers=bearer(key))
            for key in ("s", "s", "s", "a", "r", "r")
        ]

    *_, third, other, _, root = with_client(gateway, go, api_key_file=key_file)
    error = error_of(third, 429)
    assert (error["type"], error["code"]) == ("rate_limit_error", "requests_per_minute")
    assert 1 <= int(third.headers["retry-after"]) <= 30
    assert other.status_code == root.status_code == 200


def test_tokens_a_minute(gateway, key_file):
    """6 tokens of prompt and 5 of output for each call, until 40 are used."""

    async def go(http_client):
        long = await http_client.post(
            "/generate", json={"input_ids": [5] * 41}, headers=bearer("t")
        )
        replies = []
        while not replies or replies[-1].status_code == 200:
            replies.append(
                await http_client.post("/generate", json=TEXT | {"rid": "x"}, headers=bearer("t"))
            )
        return long, replies

    long, replies = with_client(gateway, go, api_key_file=key_file)
    assert error_of(long, 400)["code"] == "tokens_per_minute"
    used = sum(
        meta["prompt_tokens"] + meta["completion_tokens"]
        for meta in (reply.json()["meta_info"] for reply in replies[:-1])
    )
    assert 20 <= used <= 52
    error = error_of(replies[-1], 429)
    assert error["code"] == "tokens_per_minute"
    assert int(replies[-1].headers["retry-after"]) >= 1


def test_fields_cost_their_alternatives_alone(renderer, key_file):
    """The prompt is charged once, and what has been let in is scored to its end."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    gateway = ScriptedGateway(renderer, ('{"ok": true}',))
    sampling = {"json_schema": schema, "field_logprobs": True}

    async def go(http_client):
        body = {"input_ids": [5] * 20, "sampling_params": sampling}
        return [
            await http_client.post("/generate", json=body, headers=bearer("t")) for _ in range(2)
        ]

    first, second = with_client(gateway, go, api_key_file=key_file)
    assert first.json()["meta_info"]["field_logprobs"]["/ok"]["alternatives"]
    assert error_of(second, 429)["code"] == "tokens_per_minute"
    assert len(gateway.requests) == 3
    assert all(request.belongs for request in gateway.requests[1:])


def test_refused_requests_cost_no_tokens(gateway, key_file):
    async def go(http_client):
        gateway.refusal = QueueFull("full")
        for _ in range(10):
            reply = await http_client.post("/generate", json=TEXT, headers=bearer("t"))
            assert reply.json()["error"]["code"] == "queue_full"
        gateway.refusal = None
        return await http_client.post("/generate", json=TEXT, headers=bearer("t"))

    assert with_client(gateway, go, api_key_file=key_file).status_code == 200


def test_priority_has_a_ceiling(gateway, key_file):
    async def go(http_client):
        return [
            await http_client.post("/generate", json=TEXT | {"priority": p}, headers=bearer(key))
            for key, p in (("a", 2), ("a", 3), ("b", 9))
        ]

    fits, above, free = with_client(gateway, go, api_key_file=key_file)
    assert fits.status_code == free.status_code == 200
    assert error_of(above, 400)["param"] == "priority"
    assert [request.priority for request in gateway.requests] == [2, 9]


def test_concurrent_calls_of_a_key(gateway, key_file):
    gateway.gate = asyncio.Event()

    async def go(http_client):
        first = asyncio.create_task(http_client.post("/generate", json=TEXT, headers=bearer("o")))
        while not gateway.running:
            await asyncio.sleep(0.001)
        second = await http_client.post("/generate", json=TEXT, headers=bearer("o"))
        gateway.gate.set()
        other = await http_client.post("/generate", json=TEXT, headers=bearer("b"))
        assert (await first).status_code == other.status_code == 200
        third = await http_client.post("/generate", json=TEXT, headers=bearer("o"))
        return second, third

    second, third = with_client(gateway, go, api_key_file=key_file)
    assert error_of(second, 429)["code"] == "too_many_concurrent"
    assert "retry-after" in second.headers
    assert third.status_code == 200


@pytest.mark.parametrize(("key", "ends"), [("b", False), ("a", True), ("r", True)])
def test_nobody_ends_the_calls_of_another(gateway, key_file, key, ends):
    gateway.gate = asyncio.Event()

    async def go(http_client):
        call = asyncio.create_task(
            http_client.post("/generate", json=TEXT | {"rid": "x"}, headers=bearer("a"))
        )
        while not gateway.running:
            await asyncio.sleep(0.001)
        abort = await http_client.post("/abort_request", json={"rid": "x"}, headers=bearer(key))
        assert abort.status_code == 200
        gateway.gate.set()
        return (await call).json()["meta_info"]["finish_reason"]["type"]

    assert (with_client(gateway, go, api_key_file=key_file) == "abort") is ends


def test_metrics_know_keys_and_requests_know_ids(gateway, key_file):
    async def go(http_client):
        headers = bearer("a") | {"X-Request-Id": "call 1".replace(" ", "-")}
        await http_client.post("/generate", json=TEXT, headers=headers)

    with_client(gateway, go, api_key_file=key_file)
    origin = gateway.requests[0].origin
    assert (origin.tenant, origin.request_id, origin.counted) == ("alice", "call-1", True)


def test_a_probe_is_counted_for_nobody(gateway):
    assert ask(gateway, "/health_generate", None, "GET").status_code == 200
    assert gateway.requests[0].origin.counted is False


# ---- phases and limits ----


def phase_client(gateway, life: Life) -> httpx.AsyncClient:
    config = Config(model=ModelConfig(model=MODEL), http=HttpConfig())
    app = create_app(gateway, config, life=life)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


@pytest.mark.parametrize(
    ("phase", "code", "health"), [("loading", "loading", 503), ("draining", "stopping", 200)]
)
def test_a_server_that_takes_no_calls_says_so(gateway, phase, code, health):
    async def go():
        async with phase_client(gateway, Life(phase)) as http_client:
            for path in (CHAT, "/generate", "/flush_cache"):
                response = await http_client.post(path, json=hello())
                assert error_of(response, 503)["code"] == code
                assert int(response.headers["retry-after"]) >= 1
            assert error_of(await http_client.get("/ready"), 503)["code"] == code
            assert (await http_client.get("/health")).status_code == health
            assert (await http_client.get("/metrics")).status_code == 200

    asyncio.run(go())
    assert gateway.requests == []


def test_open_calls_go_on_while_draining(gateway):
    gateway.gate = asyncio.Event()
    life = Life("serving")

    async def go():
        async with phase_client(gateway, life) as http_client:
            call = asyncio.create_task(http_client.post(CHAT, json=hello(stream=True)))
            while not gateway.running:
                await asyncio.sleep(0.001)
            life.phase = "draining"
            assert not await life.quiet(0.01)
            assert (await http_client.post("/abort_request", json={"rid": "?"})).status_code == 200
            gateway.gate.set()
            events = events_of((await call).text, done=True)
            assert await life.quiet(1)
            return events

    assert asyncio.run(go())[-1]["choices"][0]["finish_reason"] == "stop"


def test_open_calls_have_a_limit(gateway):
    gateway.gate = asyncio.Event()

    async def go(http_client):
        calls = [asyncio.create_task(http_client.post("/generate", json=TEXT)) for _ in range(3)]
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        abort = await http_client.post("/abort_request", json={"rid": "x"})
        health = await http_client.get("/health")
        gateway.gate.set()
        others = [call.result() for call in (await asyncio.wait(calls))[0] if call not in done]
        return done.pop().result(), abort.status_code, health.status_code, others

    refused, abort, health, others = with_client(gateway, go, max_streams=2)
    assert error_of(refused, 429)["code"] == "too_busy"
    assert int(refused.headers["retry-after"]) >= 1
    assert (abort, health) == (200, 200)
    assert [other.status_code for other in others] == [200, 200]


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_says_when_to_try_again(gateway, stream):
    gateway.refusal = QueueFull("full")
    response = ask(gateway, CHAT, hello(stream=stream))
    assert error_of(response, 429)["code"] == "queue_full"
    assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/generate"])
@pytest.mark.parametrize(
    ("asked", "most", "kept"),
    [(None, 0, None), (None, 9, 9), (2, 9, 2), (2.5, 0, 2.5), (20, 9, 9), (1e9, 9, 9)],
)
def test_the_shorter_deadline_holds(gateway, path, asked, most, kept):
    body = {CHAT: hello(), "/generate": TEXT}.get(path, {"prompt": "x"})
    response = ask(gateway, path, body | {"timeout_s": asked}, request_timeout=most)
    assert response.status_code == 200
    assert gateway.requests[0].timeout_s == kept


PROGRAM = {
    "radixserve_program": 1,
    "steps": [{"do": "text", "text": "x"}, {"do": "gen", "name": "a"}],
}
TIMED = {
    CHAT: hello(),
    "/v1/completions": {"prompt": "x"},
    "/v1/embeddings": {"input": "x"},
    "/v1/messages": {"max_tokens": 4, "messages": [{"role": "user", "content": "x"}]},
    "/v1/responses": {"input": "x"},
    "/v1/programs": {"program": PROGRAM},
    "/generate": TEXT,
}


@pytest.mark.parametrize("path", TIMED)
def test_a_deadline_is_a_number_of_seconds_in_every_dialect(gateway, path):
    for value in (0, -1, -1e308, "5", True, [1], 10**400):
        response = ask(gateway, path, TIMED[path] | {"timeout_s": value})
        assert response.status_code == 400, response.text
        said = response.json()["error"]["message"]
        assert said.startswith("timeout_s must be a finite number of seconds above 0, not "), said
        assert len(said) < 200
    assert not gateway.requests


@pytest.mark.parametrize("path", TIMED)
def test_a_deadline_may_be_as_far_away_as_a_number_can_be(gateway, path):
    response = ask(gateway, path, TIMED[path] | {"timeout_s": 1e308}, request_timeout=9)
    assert response.status_code == 200, response.text
    assert {request.timeout_s for request in gateway.requests} == {9.0}
