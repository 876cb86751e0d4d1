"""What replies tell of a constraint, and that checking one holds up nobody."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from radixserve.errors import InvalidRequest
from radixserve.native import bound
from tests.api.constraint_talk import ANSWER, BOTH, PLAIN, SCHEMA
from tests.api.scripted import ScriptedGateway, client
from tests.api.talk import CHAT, answered, hello, streamed


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, (ANSWER,))


# ---- replies ----


def test_a_reply_tells_what_was_forced_and_truncated(gateway):
    gateway.forced_tokens, gateway.truncated = 3, True
    body = {"text": "x", "sampling_params": {"json_schema": SCHEMA, "max_new_tokens": 4}}
    whole = answered(gateway, "/generate", body)["meta_info"]
    assert (whole["forced_tokens"], whole["truncated"]) == (3, True)
    assert whole["finish_reason"]["type"] == "length"
    *before, last = streamed(gateway, "/generate", body)
    assert (last["meta_info"]["forced_tokens"], last["meta_info"]["truncated"]) == (3, True)
    assert all("truncated" not in chunk["meta_info"] for chunk in before)


def test_what_was_not_truncated_does_not_say_so(gateway):
    meta = answered(gateway, "/generate", {"text": "x"})["meta_info"]
    assert "truncated" not in meta
    assert "constraint_violations" not in meta
    choice = answered(gateway, CHAT, hello())["choices"][0]
    assert "truncated" not in choice
    assert "constraint_violations" not in choice


@BOTH
@pytest.mark.parametrize("n", [1, 2])
def test_openai_replies_tell_it_too(gateway, path, n):
    gateway.forced_tokens, gateway.truncated = 3, True
    body = {**PLAIN[path], "guided_json": SCHEMA, "max_tokens": 4, "n": n}
    whole = answered(gateway, path, body)
    assert [choice["truncated"] for choice in whole["choices"]] == [True] * n
    assert {choice["finish_reason"] for choice in whole["choices"]} == {"length"}
    details = {"reasoning_tokens": 0, "forced_tokens": 3 * n}
    assert whole["usage"]["completion_tokens_details"] == details
    events = streamed(gateway, path, {**body, "stream_options": {"include_usage": True}})
    ends = [c for e in events for c in e["choices"] if c["finish_reason"]]
    assert [choice["truncated"] for choice in ends] == [True] * n
    assert sum("truncated" in c for e in events for c in e["choices"]) == n
    assert events[-1]["usage"]["completion_tokens_details"] == details
    if path == CHAT:
        ChatCompletion.model_validate(whole, strict=True)
        for event in events:
            ChatCompletionChunk.model_validate(event, strict=True)


# ---- off the loop ----


def test_a_slow_check_holds_up_nobody(gateway, monkeypatch):
    waits, threads = threading.Event(), []

    def slow(constraint):
        threads.append(threading.current_thread().name)
        assert waits.wait(10)
        return constraint

    monkeypatch.setattr(bound, "check", slow)

    async def go():
        async with client(gateway) as http:
            slow_ones = [
                asyncio.create_task(http.post(CHAT, json=hello(guided_json=SCHEMA)))
                for _ in range(8)
            ]
            await asyncio.sleep(0.05)
            for _ in range(8):
                assert (await http.post(CHAT, json=hello())).status_code == 200
            assert not any(task.done() for task in slow_ones)
            waits.set()
            return [reply.status_code for reply in await asyncio.gather(*slow_ones)]

    assert asyncio.run(go()) == [200] * 8
    assert len(threads) == 1, "equal constraints are checked once"
    assert threads[0].startswith("grammar-check")


def test_a_refusal_is_kept(gateway, monkeypatch):
    """Who asks for the same again, at once or later, is refused without work."""
    verdicts = []

    def failing(constraint):
        verdicts.append(constraint)
        time.sleep(0.1)
        raise InvalidRequest("no", param=constraint.kind, code="unsupported_schema")

    monkeypatch.setattr(bound, "check", failing)

    async def go(count):
        async with client(gateway) as http:
            asking = [http.post(CHAT, json=hello(guided_json=SCHEMA)) for _ in range(count)]
            return [reply.json()["error"]["param"] for reply in await asyncio.gather(*asking)]

    assert asyncio.run(go(5)) == ["guided_json"] * 5
    assert asyncio.run(go(1)) == ["guided_json"]
    assert len(verdicts) == 1


def test_a_client_that_leaves_during_the_check_reaches_no_engine(gateway, monkeypatch):
    waits = threading.Event()
    monkeypatch.setattr(bound, "check", lambda constraint: waits.wait(10) and constraint)

    async def go():
        async with client(gateway) as http:
            asking = asyncio.create_task(http.post(CHAT, json=hello(guided_json=SCHEMA)))
            await asyncio.sleep(0.05)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            waits.set()
            await asyncio.sleep(0.05)
            return (await http.post(CHAT, json=hello())).status_code

    assert asyncio.run(go()) == 200
    assert len(gateway.requests) == 1
