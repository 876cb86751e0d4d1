"""docs/responses.md: its request is answered, its fields and events are those of the code."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from radixserve.api.responses import schema, shapes
from tests.api.response_talk import answered, rebuilt, streamed
from tests.api.scripted import ScriptedGateway

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "responses.md").read_text()
REQUESTS = re.findall(r"```json\nPOST (\S+)\n(.*?)```", PAGE, re.DOTALL)
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_its_requests_are_answered(renderer, path, body):
    assert path == shapes.PATH
    gateway = ScriptedGateway(renderer, (CALL,), context_len=4096)
    [call] = answered(gateway, json.loads(body))["output"]
    assert (call["name"], call["arguments"]) == ("look_up", '{"city": "Rome"}')


def test_it_names_every_field():
    table, _, refused = PAGE.partition("Refused unless they ask for nothing")
    words = set(re.findall(r"[a-z_]+", table))
    assert set(schema.ResponseRequest.__struct_fields__) - {"model"} <= words
    named = set(re.findall(r"`([a-z_]+)", refused.partition("Items are")[0]))
    assert set(schema.REFUSED) - named <= {"service_tier", "stream_options"}


def test_its_events_are_those_of_a_stream(renderer):
    gateway = ScriptedGateway(renderer, (f"Well. {CALL}",), context_len=4096)
    events = streamed(gateway, json.loads(REQUESTS[0][1]))
    rebuilt(events)
    for event in events:
        kind = event["type"]
        assert f"`{kind}`" in PAGE or f"`{kind.removeprefix('response.')}`" in PAGE


def test_its_paths_are_those_of_the_document():
    told = {f"{method} {path}" for method, path in re.findall(r"`([A-Z]+) (/v1\S+)`", PAGE)}
    ours = {"GET": shapes.ONE, "DELETE": shapes.ONE, "POST": shapes.CANCEL}
    paths = {f"{method} {path}" for method, path in ours.items()}
    paths |= {f"GET {shapes.INPUT_ITEMS}", f"POST {shapes.INPUT_TOKENS}"}
    assert told == {path.replace("{name}", "{id}") for path in paths}
