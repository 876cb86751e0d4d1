"""The engine is told when a program of POST /v1/programs has ended, however it did."""

from __future__ import annotations

import json

import pytest

from radixserve.api.programs import PATH
from radixserve.errors import QueueFull
from tests.api.scripted import ScriptedGateway
from tests.api.talk import answered, ask, error_of, streamed
from tests.api.test_entrance import bearer, with_client
from tests.api.test_programs import BODY


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer)


def test_it_is_told_once_the_last_call_has_ended(gateway):
    reply = answered(gateway, PATH, BODY)
    assert gateway.ended_programs == [(reply["id"], "")]
    assert {each.program.id for each in gateway.requests} == {reply["id"]}


def test_a_stream_tells_it_too(gateway):
    events = streamed(gateway, PATH, BODY)
    assert gateway.ended_programs == [(events[-1]["result"]["id"], "")]


def test_so_does_a_program_that_failed(gateway):
    gateway.refusal = QueueFull("full")
    error_of(ask(gateway, PATH, BODY), 429)
    assert [program for program, _ in gateway.ended_programs] == [gateway.requests[0].program.id]


def test_it_is_told_in_the_namespace_of_the_calls(gateway, tmp_path):
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": {"alice": {"key": "a", "namespace": "team"}}}))

    async def go(client):
        return await client.post(PATH, json=BODY | {"cache_salt": "x"}, headers=bearer("a"))

    assert with_client(gateway, go, api_key_file=str(path)).status_code == 200
    [(_, namespace)] = gateway.ended_programs
    assert namespace
    assert namespace == gateway.requests[0].namespace
