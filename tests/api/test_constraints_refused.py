"""Constraints that are malformed, in conflict, or that cannot be enforced: a 400 that names the
field, before the first byte of a stream."""

from __future__ import annotations

import json

import pytest

from radixserve.errors import InvalidRequest
from tests.api.constraint_talk import (
    ANSWER,
    BOTH,
    EBNF,
    PLAIN,
    SCHEMA,
    STREAM_OR_NOT,
    response_format,
)
from tests.api.scripted import ScriptedGateway
from tests.api.talk import CHAT, ask, error_of, hello


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, (ANSWER,))


@BOTH
@STREAM_OR_NOT
@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": None}, "response_format.json_schema"),
        (response_format(), "response_format.json_schema.schema"),
        (response_format(name="x"), "response_format.json_schema.schema"),
        (response_format(name="x", schema=None), "response_format.json_schema.schema"),
        (response_format(schema=json.dumps(SCHEMA)), "response_format.json_schema.schema"),
        (response_format(schema=[]), "response_format.json_schema.schema"),
        (response_format(schema=SCHEMA, strict="yes"), "response_format.json_schema.strict"),
        (response_format(schema=SCHEMA, name=5), "response_format.json_schema.name"),
        (response_format(schema=SCHEMA, colour=1), "response_format.json_schema.colour"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": None}, "response_format.type"),
        ({}, "response_format.type"),
        ({"type": "text", "json_schema": {"schema": {}}}, "response_format.json_schema"),
        ({"type": "json_object", "json_schema": {"schema": {}}}, "response_format.json_schema"),
        ({"type": "json_object", "schema": "{}"}, "response_format.schema"),
        ({"type": "text", "schema": SCHEMA}, "response_format.schema"),
        ({**response_format(schema=SCHEMA), "schema": SCHEMA}, "response_format.schema"),
        ({"type": "json_object", "colour": 1}, "response_format.colour"),
        ("json_object", "response_format"),
        ([], "response_format"),
    ],
)
def test_malformed_response_formats_are_named(gateway, path, value, param, stream):
    body = {**PLAIN[path], "response_format": value, "stream": stream}
    assert error_of(ask(gateway, path, body), 400)["param"] == param
    assert gateway.requests == []


@BOTH
@STREAM_OR_NOT
@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"regex": "a"}, ("response_format", "regex")),
        ({"ebnf": EBNF}, ("response_format", "ebnf")),
        ({"guided_json": SCHEMA}, ("response_format", "guided_json")),
        ({"structured_outputs": {"json": SCHEMA}}, ("response_format", "structured_outputs.json")),
        ({"response_format": None, "regex": "a", "choice": ["a"]}, ("regex", "choice")),
        (
            {"response_format": None, "structured_outputs": {"regex": "a", "json_object": True}},
            ("structured_outputs.regex", "structured_outputs.json_object"),
        ),
    ],
)
def test_a_conflict_names_both(gateway, path, fields, names, stream):
    body = {**PLAIN[path], "response_format": {"type": "json_object"}, "stream": stream, **fields}
    error = error_of(ask(gateway, path, body), 400)
    assert error["param"] == names[-1]
    assert error["code"] == "conflicting_parameters"
    assert all(name in error["message"] for name in names)
    assert gateway.requests == []


# ---- refusals: G11 ----

BROKEN = {"type": "object", "properties": {"c": {"type": "string", "pattern": "["}}}
UNSUPPORTED = [
    (
        BROKEN,
        "/properties/c/pattern",
        "pattern",
    ),
    (
        {"type": "array", "items": {"type": "string", "format": "uri-template"}},
        "/items/format",
        "format",
    ),
    ({"$ref": "other.json#/x"}, "/$ref", "$ref"),
    ({"type": "strin"}, "/type", "type"),
    (
        {"type": "array", "uniqueItems": True, "items": {"type": "string"}},
        "/uniqueItems",
        "uniqueItems",
    ),
]


@BOTH
@STREAM_OR_NOT
@pytest.mark.parametrize(("schema", "pointer", "keyword"), UNSUPPORTED, ids=lambda x: str(x)[:30])
def test_what_cannot_be_enforced_is_refused_before_the_stream(
    gateway, path, schema, pointer, keyword, stream
):
    body = {**PLAIN[path], "response_format": response_format(name="x", schema=schema)}
    error = error_of(ask(gateway, path, {**body, "stream": stream}), 400)
    assert (error["param"], error["code"]) == ("response_format", "unsupported_schema")
    assert pointer in error["message"]
    assert keyword in error["message"]
    assert gateway.requests == []


@STREAM_OR_NOT
@pytest.mark.parametrize(
    ("params", "field", "said"),
    [
        ({"json_schema": json.dumps(BROKEN)}, "json_schema", "/properties/c/pattern"),
        ({"json_schema": "{"}, "json_schema", "not JSON"),
        ({"json_schema": ""}, "json_schema", "not JSON"),
        ({"json_schema": False}, "json_schema", "no value"),
        ({"regex": "["}, "regex", "["),
        ({"regex": "(a)\\1"}, "regex", "\\1"),
        ({"ebnf": "root ::= nowhere"}, "ebnf", "nowhere"),
        ({"ebnf": ""}, "ebnf", "ebnf"),
        ({"choice": []}, "choice", "choice"),
        ({"regex": "a" * 9000}, "regex", "bytes"),
    ],
)
def test_native_refusals_name_the_field(gateway, params, field, said, stream):
    body = {"text": "x", "sampling_params": params, "stream": stream}
    error = error_of(ask(gateway, "/generate", body), 400)
    assert error["param"] == f"sampling_params.{field}"
    assert said in error["message"]
    assert gateway.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "["}, "guided_regex"),
        ({"guided_json": BROKEN}, "guided_json"),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json"),
        ({"structured_outputs": {"colour": 5}}, "structured_outputs.colour"),
        (
            {"structured_outputs": {"whitespace_pattern": "x"}},
            "structured_outputs.whitespace_pattern",
        ),
        ({"guided_choice": ["a", 5]}, "guided_choice[1]"),
        ({"ebnf": "x"}, "ebnf"),
        ({"guided_whitespace_pattern": "x"}, "guided_whitespace_pattern"),
    ],
)
def test_refusals_name_the_field_as_the_client_knows_it(gateway, fields, param):
    assert error_of(ask(gateway, CHAT, hello(**fields)), 400)["param"] == param
    assert gateway.requests == []


@BOTH
@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00"])
def test_half_a_surrogate_pair_in_a_schema_is_a_400(gateway, path, half):
    place = b'{"type":"json_schema","json_schema":{"schema":{"enum":["%s"]}}}' % half.encode()
    body = json.dumps(PLAIN[path]).encode()[:-1] + b',"response_format":' + place + b"}"
    error = error_of(ask(gateway, path, body), 400)
    assert error["param"] == "response_format.json_schema.schema.enum[0]"


@BOTH
@STREAM_OR_NOT
def test_what_the_engine_refuses_is_named_as_the_client_knows_it(gateway, path, stream):
    """Compiling happens there, and it alone knows how many tokens an output needs."""
    body = {**PLAIN[path], "response_format": response_format(schema=SCHEMA), "stream": stream}
    gateway.refusal = InvalidRequest("too slow", param="json_schema", code="unsupported_schema")
    assert error_of(ask(gateway, path, body), 400)["param"] == "response_format"
    gateway.refusal = InvalidRequest("max_new_tokens is 2, 9 are needed", param="max_new_tokens")
    error = error_of(ask(gateway, path, {**body, "max_tokens": 2}), 400)
    assert error["param"] == "max_tokens"
    assert error["message"] == "max_tokens is 2, 9 are needed"
    error = error_of(ask(gateway, path, {**body, "max_completion_tokens": 2}), 400)
    assert error["param"] == "max_completion_tokens"


def test_the_engines_refusals_in_the_native_dialect(gateway):
    body = {"text": "x", "sampling_params": {"regex": "a+"}}
    gateway.refusal = InvalidRequest("too slow", param="regex", code="unsupported_schema")
    assert error_of(ask(gateway, "/generate", body), 400)["param"] == "sampling_params.regex"
    gateway.refusal = InvalidRequest("9 are needed", param="max_new_tokens")
    error = error_of(ask(gateway, "/generate", body), 400)
    assert error["param"] == "sampling_params.max_new_tokens"
