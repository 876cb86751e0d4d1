"""Keys against what no well-behaved client sends: odd paths, keys beyond ASCII, huge heads."""

from __future__ import annotations

import contextlib
import json
import socket
import urllib.parse

import pytest

from radixserve.api.app import create_app
from radixserve.config.schema import Config, HttpConfig, ModelConfig
from tests.api.listening import listening
from tests.api.scripted import MODEL, ScriptedGateway

KEY = "sécret"
BODY = b'{"text":"x","messages":[]}'


@pytest.fixture(scope="module")
def gateway(renderer):
    return ScriptedGateway(renderer)


@pytest.fixture(scope="module")
def server(gateway):
    config = Config(model=ModelConfig(model=MODEL), http=HttpConfig(api_key=(KEY,)))
    with listening(create_app(gateway, config)) as url:
        yield urllib.parse.urlsplit(url).port


def exchange(port: int, method: str, target: str, key: bytes | None) -> tuple[int, bytes]:
    """Status and everything behind the head. The target goes out as it is written here."""
    head = [f"{method} {target} HTTP/1.1".encode(), b"Host: x", b"Connection: close"]
    head += [b"Content-Type: application/json", b"Content-Length: %d" % len(BODY)]
    if key is not None:
        head.append(b"Authorization: Bearer " + key)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        with contextlib.suppress(OSError):  # the server may have enough before we are done
            line.sendall(b"\r\n".join(head) + b"\r\n\r\n" + BODY)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := line.recv(65536):
                got += piece
    first, _, rest = got.partition(b"\r\n\r\n")
    return int(first.split(b" ", 2)[1]) if first else 0, rest


TARGETS = [
    "//v1/chat/completions", "/v1/../generate", "/v1/%2e%2e/generate", "/./generate",
    "/generate/", "/%67enerate", "/GENERATE", "/health/../generate", "/health/../flush_cache",
    "/metrics/../flush_cache", "/health;x/../flush_cache", "/health%00", "/flush_cache?/health",
    "http://x/flush_cache", "/generate#/health",
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_o07_paths_that_are_not_normal_need_the_key(server, gateway, method, target):
    """Whatever they lead to: nothing is generated, nothing flushed."""
    status, body = exchange(server, method, target, None)
    assert status == 401
    if method != "HEAD":
        assert json.loads(body)["error"]["type"] == "authentication_error"
    assert (gateway.requests, gateway.flushed) == ([], 0)


@pytest.mark.parametrize(
    "key",
    ["é".encode(), "é".encode("latin-1"), KEY.encode("latin-1"), b"\xff\xfe", b"sec ret"],
    ids=ascii,
)
def test_o07_keys_beyond_ascii_are_compared_as_bytes(server, key):
    status, body = exchange(server, "GET", "/v1/models", key)
    assert status == 401
    assert json.loads(body)["error"]["type"] == "authentication_error"
    assert exchange(server, "GET", "/v1/models", KEY.encode())[0] == 200


def test_o07_a_key_of_ten_megabytes_is_turned_away(server):
    """Its head is never read whole; the next caller is served."""
    status, _ = exchange(server, "GET", "/v1/models", b"k" * 10_000_000)
    assert status in (0, 400, 401, 431)  # 0: the connection was closed while we wrote
    assert exchange(server, "GET", "/v1/models", KEY.encode())[0] == 200


@pytest.mark.parametrize("target", ["/health", "/ready", "/metrics"])
def test_o07_the_public_set_answers_head_without_a_key(server, target):
    status, body = exchange(server, "HEAD", target, None)
    assert status in (200, 405)
    assert body == b""
