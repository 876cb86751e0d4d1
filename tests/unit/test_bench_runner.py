"""The order of calls and the check of what a server did."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.serving.client import Endpoint, PeerError
from benchmarks.serving.runner import Run, find_model, run
from benchmarks.serving.workloads import Call
from tests.bench_server import Peer, serving


def go(peer: Peer, calls: list[Call], at_once: int = 2, shared: int = 0) -> Run:
    async def main() -> Run:
        found = await find_model(Endpoint("peer", "127.0.0.1", peer.port), 10)
        assert found.model == "m"
        return await run(found, calls, at_once, 10, shared)

    return asyncio.run(main())


def plain(n: int, tokens: int = 2) -> list[Call]:
    return [Call((i, i + 1), tokens) for i in range(n)]


def test_every_call_is_sent_once_and_no_more_than_allowed_are_under_way():
    with serving(Peer(delay=0.005)) as peer:
        result = go(peer, plain(12), at_once=3)
    assert sorted(body["prompt"][0] for body in peer.bodies) == list(range(12))
    assert peer.most_under_way == 3
    assert result.output_tokens == 24
    assert result.cached_tokens == 0


def test_a_call_is_sent_after_all_that_it_waits_for():
    tree = [
        Call((0,), 3),
        Call((1,), 3),
        Call((2,), 3, after=(0,)),
        Call((3,), 3, after=(0, 1)),
        Call((4,), 3, after=(3,)),
        Call((5,), 3, after=(2, 4)),
    ]
    with serving(Peer(delay=0.002)) as peer:
        go(peer, tree, at_once=4)
    at = {event: place for place, event in enumerate(peer.order)}
    for i, call in enumerate(tree):
        for before in call.after:
            assert at["answered", (before,)] < at["sent", (i,)]
    assert len(peer.bodies) == len(tree)


def test_calls_go_out_in_their_order():
    with serving(Peer()) as peer:
        go(peer, plain(6), at_once=1)
    assert [body["prompt"][0] for body in peer.bodies] == list(range(6))


def test_the_numbers_of_a_run():
    with serving(Peer(delay=0.02)) as peer:
        result = go(peer, plain(4, tokens=5), at_once=2)
    assert result.ttft >= 0.018
    assert result.ttft_p99 >= result.ttft
    assert result.itl is not None
    assert 0.018 <= result.itl <= result.makespan / 4
    assert result.makespan >= 2 * 5 * 0.018
    assert result.tokens_per_second == 20 / result.makespan
    assert 0 < result.client_cpu < result.makespan


def test_one_token_has_no_time_between_tokens():
    with serving(Peer()) as peer:
        assert go(peer, plain(2, tokens=1)).itl is None


def test_a_server_that_does_not_tell_what_was_cached():
    with serving(Peer(cached=None)) as peer:
        assert go(peer, plain(2)).cached_tokens is None


@pytest.mark.parametrize("off", [-1, 1])
def test_another_number_of_output_tokens_is_an_error(off: int):
    with serving(Peer(tokens_off=off)) as peer, pytest.raises(PeerError, match=f"gave {2 + off} "):
        go(peer, plain(2))


def test_another_number_of_prompt_tokens_is_an_error():
    with serving(Peer(prompt_off=1)) as peer, pytest.raises(PeerError, match="changes the prompts"):
        go(peer, plain(2))


def test_more_cached_tokens_than_the_prompts_share_are_an_error():
    calls = plain(2)
    with serving(Peer(cached=50)) as peer:
        assert go(peer, calls, shared=100).cached_tokens == 100
        with pytest.raises(PeerError, match="another --seed"):
            go(peer, calls, shared=80)


def test_the_error_of_one_call_ends_the_run():
    with serving(Peer(status=500)) as peer, pytest.raises(PeerError, match="status 500"):
        go(peer, plain(40))
    assert len(peer.bodies) <= 3


def test_answers_under_a_schema_are_as_long_as_they_are_and_judged():
    calls = [Call((i,), 8, schema={"type": "integer"}) for i in range(4)]
    with serving(Peer(texts=["1", "2"])) as peer:
        assert go(peer, calls).valid == 1.0
    assert all("ignore_eos" not in body for body in peer.bodies)
    assert peer.bodies[0]["response_format"]["json_schema"]["schema"] == {"type": "integer"}
    for texts in (["1", "."], ["t", "rue"], ["{"]):
        with serving(Peer(texts=texts)) as peer:
            assert go(peer, calls).valid == 0.0
    with serving(Peer(texts=["1"] * 9)) as peer, pytest.raises(PeerError, match="9 tokens"):
        go(peer, calls)
    with serving(Peer()) as peer:
        assert go(peer, plain(2)).valid is None
