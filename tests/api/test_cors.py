"""Pages of other origins, ids of calls, the line in the log."""

from __future__ import annotations

import json
import logging

import pytest

from radixserve.api.openapi import document
from tests.api.scripted import ScriptedGateway
from tests.api.talk import CHAT, error_of, hello
from tests.api.test_entrance import KEYS, bearer, with_client


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer)


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": KEYS}))
    return str(path)


# ---- CORS ----

PAGE = "https://page.example"


def test_a_preflight_needs_no_key(gateway):
    async def go(http_client):
        headers = {
            "Origin": PAGE,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type",
        }
        return await http_client.options(CHAT, headers=headers)

    response = with_client(gateway, go, api_key=("k",), cors_origin=(PAGE,))
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == PAGE
    allowed = set(response.headers["access-control-allow-methods"].split(", "))
    told = {method.upper() for each in document()["paths"].values() for method in each}
    assert allowed == told | {"OPTIONS"}
    assert response.headers["access-control-allow-headers"] == "authorization, content-type"
    other = with_client(gateway, go, api_key=("k",), cors_origin=("https://other.example",))
    assert error_of(other, 403)
    assert "access-control-allow-origin" not in other.headers
    assert with_client(gateway, go, api_key=("k",)).status_code == 401


@pytest.mark.parametrize("origins", [(PAGE,), ("*",)])
def test_every_answer_to_a_page_carries_the_headers(gateway, origins):
    async def go(http_client):
        answers = []
        for key, path, body in (
            ("k", CHAT, hello()),
            ("k", CHAT, hello(stream=True)),
            ("k", CHAT, hello(temperature=-1)),
            ("wrong", CHAT, hello()),
            ("k", "/nope", {}),
        ):
            headers = bearer(key) | {"Origin": PAGE}
            answers.append(await http_client.post(path, json=body, headers=headers))
        gateway.failure = ZeroDivisionError("secret")
        headers = bearer("k") | {"Origin": PAGE}
        answers.append(await http_client.post(CHAT, json=hello(), headers=headers))
        return answers

    answers = with_client(gateway, go, api_key=("k",), cors_origin=origins)
    assert [answer.status_code for answer in answers] == [200, 200, 400, 401, 404, 500]
    for answer in answers:
        expected = "*" if origins == ("*",) else PAGE
        assert answer.headers["access-control-allow-origin"] == expected
        assert "origin" in answer.headers["vary"].lower()
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]


def test_other_pages_and_other_clients_get_no_headers(gateway):
    async def go(http_client):
        page = await http_client.post(CHAT, json=hello(), headers={"Origin": "https://evil"})
        plain = await http_client.post(CHAT, json=hello())
        return page, plain

    for answer in with_client(gateway, go, cors_origin=(PAGE,)):
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


# ---- ids and log ----


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-123", True), ("x" * 128, True), (None, False), ("", False), ("x" * 129, False),
     ("two words", False), ("é", False)],
)  # fmt: skip
def test_a_call_has_an_id(gateway, given, kept):
    async def go(http_client):
        headers = [] if given is None else [(b"x-request-id", given.encode())]
        ok = await http_client.post(CHAT, json=hello(), headers=headers)
        bad = await http_client.post("/nope", headers=headers)
        return ok.headers["x-request-id"], bad.headers["x-request-id"]

    ok, bad = with_client(gateway, go)
    assert ok
    assert bad
    assert (ok == bad == given) is kept


def test_a_line_for_each_call(gateway, key_file, caplog):
    async def go(http_client):
        headers = bearer("a") | {"X-Request-Id": "id-1"}
        await http_client.post("/nope", headers=headers)
        await http_client.get("/health", headers={"X-Request-Id": "id-2"})

    with caplog.at_level(logging.INFO, logger="radixserve"):
        with_client(gateway, go, api_key_file=key_file)
    (line,) = [record for record in caplog.records if hasattr(record, "status")]
    assert (line.method, line.path, line.status, line.key) == ("POST", "/nope", 404, "alice")
    assert "id-1" in line.getMessage()
