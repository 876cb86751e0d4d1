"""The client: framing, events, counts, broken connections."""

from __future__ import annotations

import asyncio
import time

import pytest

from benchmarks.serving.client import Connection, Endpoint, PeerError, Reply
from tests.bench_server import Peer, serving


def endpoint(peer: Peer) -> Endpoint:
    return Endpoint("peer", "127.0.0.1", peer.port, model="m")


def talk(peer: Peer, *lengths: int, timeout: float = 10.0) -> list[Reply]:
    """Completions of these numbers of tokens, one after the other on one connection."""

    async def main() -> list[Reply]:
        connection = Connection(endpoint(peer))
        try:
            requests = [endpoint(peer).completion([1, 2, 3], n) for n in lengths]
            return [await connection.complete(request, timeout) for request in requests]
        finally:
            connection.close()

    return asyncio.run(main())


@pytest.mark.parametrize("chunk", [0, 1, 2, 3, 7, 50])
def test_a_stream_is_read_however_its_bytes_come(chunk: int):
    with serving(Peer(chunk=chunk, cached=2)) as peer:
        replies = talk(peer, 5, 1)
    assert [(r.prompt_tokens, r.output_tokens, r.cached_tokens) for r in replies] == [
        (3, 5, 2),
        (3, 1, 2),
    ]
    assert peer.connections == 1


def test_the_request_asks_for_a_greedy_stream_of_exact_length():
    with serving(Peer()) as peer:
        talk(peer, 4)
    assert peer.bodies == [
        {
            "model": "m",
            "prompt": [1, 2, 3],
            "max_tokens": 4,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_times_are_those_of_the_first_and_the_last_output():
    with serving(Peer(delay=0.05)) as peer:
        before = time.perf_counter()
        (reply,) = talk(peer, 4)
        after = time.perf_counter()
    assert before <= reply.sent < reply.first < reply.last <= after
    assert reply.first - reply.sent >= 0.045
    assert reply.last - reply.first >= 0.14


def test_a_server_that_does_not_tell_what_was_cached():
    with serving(Peer(cached=None)) as peer:
        assert talk(peer, 2)[0].cached_tokens is None


def test_a_long_stream_keeps_its_counts():
    with serving(Peer()) as peer:
        assert talk(peer, 2000)[0].output_tokens == 2000


def test_a_connection_that_the_server_ends_after_each_answer_is_opened_anew():
    with serving(Peer(closes=True)) as peer:
        assert [reply.output_tokens for reply in talk(peer, 2, 3)] == [2, 3]
    assert peer.connections == 2


def test_a_kept_connection_that_ended_before_it_was_used_again_is_opened_anew():
    with serving(Peer(drops_kept=True)) as peer:
        assert [reply.output_tokens for reply in talk(peer, 2, 3)] == [2, 3]
    assert peer.connections == 2


@pytest.mark.parametrize("ends_after", [30, 200])
def test_an_answer_that_breaks_off_is_an_error(ends_after: int):
    with serving(Peer(ends_after=ends_after)) as peer, pytest.raises(PeerError, match="ended"):
        talk(peer, 20)
    assert len(peer.bodies) == 1


def test_a_refusal_is_an_error_that_quotes_it():
    with serving(Peer(status=400)) as peer, pytest.raises(PeerError, match=r'400: .*"no"'):
        talk(peer, 2)


def test_a_server_that_does_not_answer_in_time():
    with serving(Peer(delay=5)) as peer, pytest.raises(PeerError, match=r"in 0 s|in 0\."):
        talk(peer, 2, timeout=0.1)


def test_nobody_listens():
    with serving(Peer()) as peer:
        pass
    with pytest.raises(PeerError, match="cannot connect"):
        talk(peer, 2)


@pytest.mark.parametrize(
    ("given", "name", "host", "port", "base"),
    [
        ("http://127.0.0.1:8000=x", "x", "127.0.0.1", 8000, ""),
        ("localhost:8000", "a", "localhost", 8000, ""),
        ("http://h:1/v1/", "a", "h", 1, ""),
        ("http://h:1/api/v1=b", "b", "h", 1, "/api"),
        ("http://h", "a", "h", 80, ""),
    ],
)
def test_an_endpoint_is_read_from_its_url(given: str, name: str, host: str, port: int, base: str):
    assert Endpoint.parse(given, "a") == Endpoint(name, host, port, base)


@pytest.mark.parametrize("given", ["https://h:1", "http://", "=x"])
def test_what_is_no_url_is_refused(given: str):
    with pytest.raises(ValueError, match="no http URL"):
        Endpoint.parse(given, "a")
