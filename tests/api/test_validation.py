"""constraint_mode "validate": what cannot be enforced is left out, and the reply says what the
text breaks."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from radixserve.native import validator, verdict
from tests.api.scripted import ScriptedGateway, client
from tests.api.talk import CHAT, COMPLETIONS, answered, ask, error_of, hello, streamed

UNIQUE = {
    "type": "object",
    "properties": {"tags": {"type": "array", "uniqueItems": True, "items": {"type": "string"}}},
    "required": ["tags"],
    "additionalProperties": False,
}
TWICE = [
    {
        "pointer": "/tags",
        "keyword": "uniqueItems",
        "message": "['a', 'a'] has non-unique elements",
    }
]
BAD, GOOD = '{"tags": ["a", "a"]}', '{"tags": ["a"]}'
STREAM_OR_NOT = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module", autouse=True)
def no_child_left():
    yield
    verdict._child.close()
    verdict._long_child.close()


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, (BAD, GOOD))


def openai_body(path, schema=UNIQUE, **fields):
    plain = hello() if path == CHAT else {"prompt": "x"}
    given = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {**plain, "response_format": given, "constraint_mode": "validate", **fields}


def native_body(schema=UNIQUE, **params):
    params = {"json_schema": schema, "constraint_mode": "validate", **params}
    return {"text": "x", "sampling_params": params}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_openai_choices_tell_what_they_break(gateway, path):
    body = openai_body(path, n=2)
    error_of(ask(gateway, path, {**body, "constraint_mode": "enforce"}), 400)
    whole = answered(gateway, path, body)
    assert [choice["constraint_violations"] for choice in whole["choices"]] == [TWICE, []]
    [request] = gateway.requests
    assert "uniqueItems" not in request.constraint.value
    assert "additionalProperties" in request.constraint.value
    events = streamed(gateway, path, body)
    told = {
        c["index"]: c["constraint_violations"]
        for e in events
        for c in e["choices"]
        if "constraint_violations" in c
    }
    assert told == {0: TWICE, 1: []}
    ends = [c for e in events for c in e["choices"] if c["finish_reason"]]
    assert all("constraint_violations" in choice for choice in ends)
    assert sum("constraint_violations" in c for e in events for c in e["choices"]) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_native_replies_tell_what_they_break(gateway, stream):
    body = native_body(n=2)
    if stream:
        chunks = streamed(gateway, "/generate", body)
        replies = [chunk for chunk in chunks if chunk["meta_info"]["finish_reason"]]
        assert sum("constraint_violations" in chunk["meta_info"] for chunk in chunks) == 2
    else:
        replies = answered(gateway, "/generate", body)
    found = sorted((r["text"], r["meta_info"]["constraint_violations"]) for r in replies)
    assert found == sorted([(BAD, TWICE), (GOOD, [])])


def test_what_can_be_enforced_is_validated_as_well(renderer):
    """The scripted model does not keep to it, as a real one would."""
    gateway = ScriptedGateway(renderer, ('{"n": "x"}',))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    meta = answered(gateway, "/generate", native_body(schema))["meta_info"]
    [violation] = meta["constraint_violations"]
    assert (violation["pointer"], violation["keyword"]) == ("/n", "type")
    body = {"text": "x", "sampling_params": {"json_object": True, "constraint_mode": "validate"}}
    assert answered(gateway, "/generate", body)["meta_info"]["constraint_violations"] == []


def test_prompts_of_a_batch_are_validated_each_by_its_own(gateway):
    params = [native_body()["sampling_params"], {}, {"json_object": True}]
    replies = answered(gateway, "/generate", {"text": ["a", "b", "c"], "sampling_params": params})
    found = [reply["meta_info"].get("constraint_violations") for reply in replies]
    assert found == [TWICE, None, None]


@pytest.mark.parametrize("text", ["", "no JSON", '{"tags": ["a"', '{"tags": [NaN]}', "[" * 5000])
def test_what_is_no_json_is_told(renderer, text):
    gateway = ScriptedGateway(renderer, (text,), context_len=20_000)
    body = native_body(max_new_tokens=10_000)
    [violation] = answered(gateway, "/generate", body)["meta_info"]["constraint_violations"]
    assert (violation["pointer"], violation["keyword"]) == ("", "")
    assert "not JSON" in violation["message"]


@STREAM_OR_NOT
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"$ref": "#/nowhere"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"required": "a"},
        {"pattern": "["},
        {"minimum": "5"},
    ],
)
def test_what_is_no_schema_is_refused_all_the_same(gateway, schema, stream):
    body = openai_body(CHAT, schema, stream=stream)
    assert error_of(ask(gateway, CHAT, body), 400)["param"] == "response_format"
    assert gateway.requests == []


def test_an_aborted_output_is_not_judged(gateway):
    async def go():
        gateway.gate = asyncio.Event()
        async with client(gateway) as http:
            asking = asyncio.create_task(http.post("/generate", json=native_body() | {"rid": "r"}))
            while not gateway.running:
                await asyncio.sleep(0.005)
            await http.post("/abort_request", json={"rid": "r"})
            return (await asking).json()["meta_info"]

    meta = asyncio.run(go())
    assert meta["finish_reason"]["type"] == "abort"
    assert "constraint_violations" not in meta


# ---- bombs ----

SLOW = {"type": "string", "pattern": "^(a+)+$", "minLength": 2}


def test_a_validator_that_takes_for_ever_is_stopped(renderer, monkeypatch):
    monkeypatch.setattr(verdict, "SECONDS", 1.0)
    gateway = ScriptedGateway(renderer, (json.dumps("a" * 60 + "!"), GOOD))

    async def go():
        async with client(gateway) as http:
            slow = asyncio.create_task(
                http.post("/generate", json=native_body(SLOW, max_new_tokens=400))
            )
            answered_meanwhile = 0
            while not slow.done():
                await http.get("/health")
                answered_meanwhile += not slow.done()
                await asyncio.sleep(0.02)
            after = await http.post("/generate", json=native_body(n=2))
            return (await slow).json(), answered_meanwhile, after.json()

    stopped, answered_meanwhile, after = asyncio.run(go())
    [violation] = stopped["meta_info"]["constraint_violations"]
    assert "not validated" in violation["message"]
    assert violation["keyword"] == ""
    assert answered_meanwhile >= 2
    assert after[1]["meta_info"]["constraint_violations"] == []


def test_a_verdict_waits_for_no_others_that_take_long(monkeypatch):
    """They are given up by the child that goes on, and are under way in another."""
    monkeypatch.setattr(verdict, "SECONDS", 1.0)

    async def go():
        trap = json.dumps("a" * 60 + "!")
        assert await verdict.violations(json.dumps(UNIQUE), GOOD) == ()
        process = verdict._child._process
        slow = [
            asyncio.create_task(verdict.violations(json.dumps({**SLOW, "minLength": i}), trap))
            for i in range(3)
        ]
        assert list(await verdict.violations(json.dumps(UNIQUE), BAD)) == TWICE
        assert verdict._child._process is process
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)

    asyncio.run(go())


def test_a_validator_that_was_killed_is_started_again():
    assert asyncio.run(verdict.violations(json.dumps(UNIQUE), GOOD)) == ()
    process = verdict._child._process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert list(asyncio.run(verdict.violations(json.dumps(UNIQUE), BAD))) == TWICE


def test_the_child_ends_with_its_input():
    assert asyncio.run(verdict.fault_of(json.dumps(UNIQUE))) is None
    process = verdict._child._process
    process.stdin.close()
    assert process.wait(5) == 0


# ---- the validator itself ----


def keywords(schema, value):
    found = validator.violations(json.dumps(schema), json.dumps(value))
    return [each["keyword"] for each in found]


DRAFT4 = "http://json-schema.org/draft-04/schema#"


@pytest.mark.parametrize(
    ("schema", "good", "bad", "keyword"),
    [
        ({"type": "string", "nullable": True}, None, 5, "type"),
        ({"enum": ["a"], "nullable": True}, None, 5, "enum"),
        ({"dependencies": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}, "dependencies"),
        ({"multipleOf": 0.01}, 0.58, 0.585, "multipleOf"),
        pytest.param(
            {"multipleOf": 0.01, "$schema": DRAFT4}, 10**400, 1e-3, "multipleOf", id="huge"
        ),
        (
            {"items": [{"type": "string"}], "additionalItems": False},
            ["a"],
            ["a", 1],
            "additionalItems",
        ),
        ({"minimum": 5, "exclusiveMinimum": True}, 6, 5, "minimum"),
        ({"$schema": DRAFT4, "minimum": 5, "exclusiveMinimum": True}, 6, 5, "minimum"),
        (
            {
                "$schema": DRAFT4,
                "$ref": "#/definitions/a",
                "maximum": 3,
                "definitions": {"a": {"type": "integer"}},
            },
            9,
            "x",
            "type",
        ),
        ({"$schema": "urn:unknown", "prefixItems": [{"type": "string"}]}, ["a"], [1], "type"),
        ({"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": {"type": "integer"}}}, 3, 4, "maximum"),
        ({"format": "date-time"}, "2024-02-29T12:00:00Z", "2023-02-29T12:00:00Z", "format"),
        ({"format": "uuid"}, "123e4567-e89b-12d3-a456-426614174000", "123", "format"),
        ({"format": "something"}, "x", None, None),
        (
            {"unevaluatedProperties": False, "properties": {"a": {}}},
            {"a": 1},
            {"b": 1},
            "unevaluatedProperties",
        ),
        ({"if": {"type": "string"}, "then": {"maxLength": 2}}, "ab", "abc", "maxLength"),
    ],
)
def test_a_schema_means_what_its_draft_says(schema, good, bad, keyword):
    assert keywords(schema, good) == []
    assert keywords(schema, bad) == ([] if keyword is None else [keyword])


def test_formats_whose_library_is_missing_are_checked_all_the_same(monkeypatch):
    checker = validator._formats(validator._NEWEST)
    for name in ("date-time", "uri", "hostname", "duration"):
        monkeypatch.delitem(validator._NEWEST.FORMAT_CHECKER.checkers, name, raising=False)
    bare = validator._formats(validator._NEWEST)
    for each in (checker, bare):
        assert each.conforms("2024-01-01T00:00:00Z", "date-time")
        assert not each.conforms("yesterday", "date-time")
        assert not each.conforms("a b", "uri")
        assert each.conforms(5, "uri")


def test_violations_are_few_and_short():
    found = validator.violations('{"items": {"type": "string"}}', json.dumps([1] * 1000))
    assert len(found) == validator.MAX_VIOLATIONS
    [long] = validator.violations('{"type": "object"}', json.dumps("x" * 100_000))
    assert len(long["message"]) < 2 * validator.MAX_SAID


def test_pointers_are_escaped():
    schema = {"properties": {"a/b~c": {"items": {"type": "string"}}}}
    [found] = validator.violations(json.dumps(schema), '{"a/b~c": ["x", 1]}')
    assert found["pointer"] == "/a~1b~0c/1"


def test_a_reference_outside_is_not_followed_and_not_passed_over():
    [found] = validator.violations('{"items": {"$ref": "http://127.0.0.1:9/x"}}', "[1]")
    assert found["keyword"] == "$ref"
    assert "not validated" in found["message"]


def test_endless_references_are_told():
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    [found] = validator.violations(json.dumps(loop), "1")
    assert "not validated" in found["message"]
