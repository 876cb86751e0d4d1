"""Keys and POST /v1/programs: who may call it, what a program costs, whose prefixes it meets."""

from __future__ import annotations

import json

import pytest

from radixserve.api.programs import PATH
from tests.api.scripted import ScriptedGateway
from tests.api.talk import error_of
from tests.api.test_entrance import bearer, with_client
from tests.api.test_programs import BODY

KEYS = {
    "alice": {"key": "a", "namespace": "alice"},
    "bob": {"key": "b", "namespace": "bob"},
    "slow": {"key": "s", "requests_per_minute": 3},
    "small": {"key": "t", "tokens_per_minute": 120},
    "calm": {"key": "c", "max_priority": 1},
}


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer)


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": KEYS}))
    return str(path)


def ask_as(gateway, key_file, *keys, **fields):
    async def go(http_client):
        return [
            await http_client.post(PATH, json=BODY | fields, headers=bearer(key)) for key in keys
        ]

    return with_client(gateway, go, api_key_file=key_file)


def test_a_program_needs_a_key(gateway, key_file):
    [wrong] = ask_as(gateway, key_file, "nobody")
    assert error_of(wrong, 401)
    assert not gateway.requests


def test_no_two_keys_meet_in_the_cache(gateway, key_file):
    first, other, again = ask_as(gateway, key_file, "a", "b", "a")
    counts = [reply.json()["usage"]["cached_tokens"] for reply in (first, other, again)]
    assert counts[0] == counts[1] < counts[2]
    assert len({each.namespace for each in gateway.requests}) == 2
    assert {each.origin.tenant for each in gateway.requests} == {"alice", "bob"}


def test_each_call_is_a_request_to_a_keys_budget(gateway, key_file):
    fine, over = ask_as(gateway, key_file, "s", "s")
    assert fine.json()["usage"]["calls"] == 4  # more than three: a debt that the next one meets
    assert error_of(over, 429)["code"] == "requests_per_minute"


def test_tokens_of_all_calls_count(gateway, key_file):
    replies = ask_as(gateway, key_file, "t", "t", "t")
    codes = [reply.status_code for reply in replies]
    assert codes[-1] == 429
    assert error_of(replies[-1], 429)["code"] == "tokens_per_minute"


def test_a_keys_highest_priority_holds_for_calls(gateway, key_file):
    [high] = ask_as(gateway, key_file, "c", priority=5)
    assert error_of(high, 400)["param"] == "priority"
