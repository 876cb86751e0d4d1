"""Every field of a response's body changes something: what the engine is asked, or the reply."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from radixserve.api.responses import schema
from tests.api.response_talk import RESPONSES, with_tools
from tests.api.talk import ask
from tests.api.test_reasoning import HYBRID, gateway_of, renderer_of

LOGPROBS = [schema.LOGPROBS]
BASE = with_tools(include=LOGPROBS)
CHANGED: dict[str, Any] = {
    "input": "goodbye",
    "model": "another",
    "instructions": "be brief",
    "previous_response_id": "resp_0",
    "tools": BASE["tools"][:1],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "text": {"format": {"type": "json_object"}},
    "reasoning": {"effort": "low"},
    "store": False,
    "stream": True,
    "max_output_tokens": 200,
    "temperature": 0.5,
    "top_p": 0.5,
    "include": [],
    "top_logprobs": 2,
    "thinking_token_budget": 9,
    "metadata": {"a": "b"},
    "user": "me",
    "safety_identifier": "me",
    "prompt_cache_key": "me",
    "top_k": 7,
    "min_p": 0.1,
    "stop": "quick",
    "seed": 7,
    "chat_template_kwargs": {"enable_thinking": False},
    "priority": 3,
    "timeout_s": 9,
    "cache_salt": "salt",
    "rid": "name",
    "program": {"id": "p"},
    "explain_cache": True,
}
UNEQUAL = ("id", "created_at", "completed_at", "output")  # of any two replies


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    return renderer_of(tmp_path_factory.mktemp("hybrid"), HYBRID)


def seen(renderer, given):
    """(what the engine is asked, what is told)."""
    gateway = gateway_of(renderer, "the quick fox")
    reply = ask(gateway, RESPONSES, given)
    asked = [
        replace(request, rid=request.rid if "rid" in given else "", origin=None)
        for request in gateway.requests
    ]
    if reply.headers["content-type"] != "application/json":
        return asked, reply.text
    told = {name: value for name, value in reply.json().items() if name not in UNEQUAL}
    return asked, told


def test_every_field_has_an_effect(hybrid):
    assert CHANGED.keys() == set(schema.ResponseRequest.__struct_fields__)
    plain = seen(hybrid, BASE)
    assert seen(hybrid, json.loads(json.dumps(BASE))) == plain
    for name, value in CHANGED.items():
        asked, told = seen(hybrid, {**BASE, name: value})
        labels = ("metadata", "user", "safety_identifier", "prompt_cache_key", "store", "stream")
        if name in labels:
            assert asked == plain[0], name
            assert told != plain[1], name
        else:
            assert asked != plain[0], name
