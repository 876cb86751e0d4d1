"""Messages under way: aborts, headers before any text. Of leavers: test_clients_leave.py."""

from __future__ import annotations

import asyncio

import pytest

from tests.api.anthropic_talk import MESSAGES, body, error_of, events_of
from tests.api.scripted import ScriptedGateway, client
from tests.api.test_clients_leave import LeavingClient

STREAM_OR_NOT = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer)


@STREAM_OR_NOT
def test_an_aborted_message_is_an_error(gateway, stream):
    async def go():
        gateway.gate = asyncio.Event()
        async with client(gateway) as http:
            given = body(stream=stream, rid="mine")
            asking = asyncio.create_task(http.post(MESSAGES, json=given))
            while not gateway.at_gate:
                await asyncio.sleep(0.001)
            await http.post("/abort_request", json={"rid": "mine"})
            return await asking

    response = asyncio.run(go())
    if not stream:
        error_of(response, 499, "api_error")
        return
    *_, last = events_of(response.text)
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")


def test_a_stream_begins_while_all_text_is_held_back(gateway):
    async def go():
        gateway.gate = asyncio.Event()
        given = body(stream=True, stop_sequences=["the quick brown fox"])
        asking = LeavingClient(gateway, MESSAGES, given)
        served = asking.start()
        while not gateway.at_gate:
            await asyncio.sleep(0.001)
        early = b"".join(message.get("body", b"") for message in asking.messages)
        gateway.gate.set()
        await served
        return early, b"".join(message.get("body", b"") for message in asking.messages)

    early, whole = (text.decode() for text in asyncio.run(go()))
    assert [event["type"] for event in events_of(early)] == ["message_start"]
    assert [event["type"] for event in events_of(whole)] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    assert whole.endswith("\n\n")
    assert "[DONE]" not in whole
