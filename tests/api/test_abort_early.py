"""Aborts of calls that the gateway has not been given yet."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from radixserve.grammar.check import check
from radixserve.native.request import prepare
from radixserve.native.service import NativeService
from tests.api.scripted import ScriptedGateway
from tests.api.scripted import client as make_client


class Held:
    """Work in a thread that waits."""

    def __init__(self, work):
        self._work = work
        self._at_work, self.goes_on = threading.Event(), threading.Event()

    def __call__(self, *given):
        self._at_work.set()
        assert self.goes_on.wait(60)
        return self._work(*given)

    async def begun(self):
        while not self._at_work.is_set():
            await asyncio.sleep(0.001)


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer)


@pytest.fixture
def held_body(monkeypatch):
    found = Held(prepare)
    monkeypatch.setattr("radixserve.native.service.prepare", found)
    return found


@pytest.fixture
def held_constraint(monkeypatch):
    found = Held(check)
    monkeypatch.setattr("radixserve.native.bound.check", found)
    return found


def with_client(gateway, go, **http):
    async def run():
        async with make_client(gateway, **http) as client:
            return await go(client)

    return asyncio.run(run())


def reasons(replies):
    return [reply["meta_info"]["finish_reason"]["type"] for reply in replies]


@pytest.mark.parametrize("moment", ["held_body", "held_constraint"])
@pytest.mark.parametrize("name", ["r", "s", None])
def test_an_abort_holds_for_a_call_that_is_being_prepared(gateway, request, moment, name):
    held = request.getfixturevalue(moment)

    async def go():
        service = NativeService(gateway)
        body = {"text": ["a", "b"], "rid": ["r", "s"], "sampling_params": {"regex": "a"}}
        call = asyncio.create_task(service.generate(body))
        await held.begun()
        service.abort("nobody")
        if name is None:
            service.abort_all()
        else:
            service.abort(name)
        assert not gateway.requests
        held.goes_on.set()
        ended = reasons(await call)
        gateway._asked_to_end.clear()
        assert reasons(await service.generate(body)) == ["stop", "stop"]  # was not meant
        return ended

    # The first of several rids is also the name of the call.
    assert asyncio.run(go()) == ["stop" if name == "s" else "abort", "abort"]
    assert gateway.running == 0


def test_a_stream_is_aborted_as_well(gateway, held_body):
    async def go():
        service = NativeService(gateway)
        stream = service.stream({"text": "a", "rid": "r", "stream": True})
        first = asyncio.create_task(anext(stream))
        await held_body.begun()
        service.abort("r")
        held_body.goes_on.set()
        return [await first, *[each async for each in stream]][-1]

    assert reasons([asyncio.run(go())]) == ["abort"]


def test_a_chat_is_aborted_as_well(gateway, held_constraint):
    async def go(client):
        body = {"messages": [{"role": "user", "content": "a"}], "regex": "b", "rid": "x"}
        call = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await held_constraint.begun()
        await client.post("/abort_request", json={"rid": "x"})
        held_constraint.goes_on.set()
        await call

    with_client(gateway, go)
    assert gateway._asked_to_end == {"x"}


@pytest.mark.parametrize(("key", "ends"), [("b", False), ("a", True)])
def test_nobody_ends_what_is_prepared_for_another(gateway, tmp_path, held_body, key, ends):
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": {k: {"key": k} for k in "ab"}}))

    async def go(client):
        def post(path, key, body):
            return client.post(path, json=body, headers={"Authorization": f"Bearer {key}"})

        call = asyncio.create_task(post("/generate", "a", {"text": "x", "rid": "x"}))
        await held_body.begun()
        assert (await post("/abort_request", key, {"rid": "x"})).status_code == 200
        held_body.goes_on.set()
        return reasons([(await call).json()])

    assert (with_client(gateway, go, api_key_file=str(keys)) == ["abort"]) is ends
