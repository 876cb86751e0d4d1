"""Responses that fail, and whose they are; clients that leave: test_clients_leave.py."""

from __future__ import annotations

import asyncio
import json

import pytest

from radixserve.errors import EngineDead, InternalError, QueueFull, TimedOut
from tests.api.response_talk import RESPONSES, body, events_of
from tests.api.scripted import ScriptedGateway, client
from tests.api.talk import ask, error_of

STREAM_OR_NOT = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, ("the quick brown fox",), context_len=4096)


KEYS = {"api_key": ("one", "two"), "admin_key": ("root",)}


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def test_a_response_is_its_key_s_alone(gateway):
    async def go():
        async with client(gateway, **KEYS) as asking:
            made = (await asking.post(RESPONSES, json=body(), headers=bearer("one"))).json()
            path = f"{RESPONSES}/{made['id']}"
            item = made["output"][0]["id"]
            referred = {"input": [{"id": item}, {"role": "user", "content": "go on"}]}
            tries = []
            for key in ("two", "root", "one"):
                more = body(previous_response_id=made["id"])
                tries.append(
                    [
                        (await asking.get(path, headers=bearer(key))),
                        (await asking.get(f"{path}/input_items", headers=bearer(key))),
                        (await asking.post(f"{path}/cancel", headers=bearer(key))),
                        (await asking.post(RESPONSES, json=more, headers=bearer(key))),
                        (await asking.post(RESPONSES, json=referred, headers=bearer(key))),
                        (await asking.delete(path, headers=bearer(key))),
                    ]
                )
            return tries, await asking.get(path)

    (*others, own), without = asyncio.run(go())
    for tries in others:
        assert [each.status_code for each in tries] == [404] * 6
    assert [each.status_code for each in own] == [200] * 6
    assert without.status_code == 401


# ---- failures ----


@STREAM_OR_NOT
def test_a_refusal_is_an_answer_of_its_own(gateway, stream):
    gateway.refusal = QueueFull("the queue is full")
    error = error_of(ask(gateway, RESPONSES, body(stream=stream)), 429)
    assert error["code"] == "queue_full"


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        (InternalError("it broke"), "server_error", "it broke"),
        (EngineDead("gone"), "server_error", "gone"),
        (TimedOut("too late"), "server_error", "too late"),
        (QueueFull("no room"), "rate_limit_exceeded", "no room"),
        (ZeroDivisionError("secret"), "server_error", "internal error"),
    ],
)
def test_a_stream_that_fails_ends_with_its_failure_and_is_kept(gateway, failure, code, said):
    gateway.failure = failure

    async def go():
        async with client(gateway) as asking:
            reply = await asking.post(RESPONSES, json=body(stream=True))
            events = events_of(reply.text)
            last = events[-1]["response"]
            return events, last, (await asking.get(f"{RESPONSES}/{last['id']}")).json()

    events, last, kept = asyncio.run(go())
    assert events[-1]["type"] == "response.failed"
    assert last["status"] == "failed"
    assert last["error"]["code"] == code
    assert said in last["error"]["message"]
    assert "secret" not in json.dumps(events)
    assert last["output"][0]["status"] == "incomplete"
    assert kept == last


def test_a_whole_reply_that_fails_is_an_error(gateway):
    gateway.failure = InternalError("it broke")
    assert "it broke" in error_of(ask(gateway, RESPONSES, body()), 500)["message"]


def test_an_abort_by_rid_is_a_failure(gateway):
    """Unlike a cancel, which the client of the response has asked for."""

    async def go():
        gateway.gate = asyncio.Event()
        async with client(gateway) as asking:
            reading = asyncio.create_task(asking.post(RESPONSES, json=body(stream=True, rid="r")))
            while not gateway.at_gate:
                await asyncio.sleep(0.001)
            await asking.post("/abort_request", json={"rid": "r"})
            return events_of((await reading).text)

    last = asyncio.run(go())[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["message"] == "the request was aborted"
