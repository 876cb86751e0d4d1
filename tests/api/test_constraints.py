"""Constraints by every name, over a scripted gateway: what reaches the engine, what is refused."""

from __future__ import annotations

import json

import pytest

from radixserve.api.openai import schema as openai_schema
from radixserve.api.openai.constraint import _FIELDS, _STRUCTURED, StructuredOutputs
from radixserve.grammar.check import check
from radixserve.native.sampling import KINDS, Sampling
from radixserve.wire.params import Constraint, SamplingParams
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
from tests.api.talk import CHAT, COMPLETIONS, answered, ask, error_of, hello, streamed


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, (ANSWER,))


def reached(gateway, path, body) -> Constraint | None:
    """The constraint that the body's request reached the gateway with."""
    before = len(gateway.requests)
    answered(gateway, path, body)
    [request] = gateway.requests[before:]
    return request.constraint


def is_schema(constraint, wanted=SCHEMA) -> bool:
    """Whether it is `wanted` in the normal form, whatever its spelling."""
    assert constraint.kind == "json_schema"
    plain = reached_value(wanted)
    return constraint.value == plain


def reached_value(schema) -> str:
    return check(Constraint(kind="json_schema", value=json.dumps(schema))).value


# ---- OpenAI: A07 ----


@BOTH
@STREAM_OR_NOT
@pytest.mark.parametrize("value", [None, {"type": "text"}, {"type": "text", "json_schema": None}])
def test_text_is_not_constrained(gateway, path, value, stream):
    body = {**PLAIN[path], "response_format": value}
    (streamed if stream else answered)(gateway, path, body)
    assert gateway.requests[0].constraint is None


@BOTH
@STREAM_OR_NOT
@pytest.mark.parametrize(
    "inner",
    [
        {"name": "x", "schema": SCHEMA},
        {"schema": SCHEMA},
        {"name": "x", "schema": SCHEMA, "strict": True, "description": "a number"},
        {"name": "x", "schema": SCHEMA, "strict": False},
        {"name": "x", "schema": SCHEMA, "strict": None, "description": None},
    ],
)
def test_a_schema_is_enforced_whatever_strict_says(gateway, path, inner, stream):
    body = {**PLAIN[path], "response_format": response_format(**inner)}
    (streamed if stream else answered)(gateway, path, body)
    assert is_schema(gateway.requests[0].constraint)


@BOTH
def test_a_json_object_is_asked_for(gateway, path):
    body = {**PLAIN[path], "response_format": {"type": "json_object"}}
    assert reached(gateway, path, body) == Constraint(kind="json_object")


@BOTH
def test_text_conflicts_with_nothing(gateway, path):
    body = {**PLAIN[path], "response_format": {"type": "text"}, "regex": "a+"}
    assert reached(gateway, path, body) == Constraint(kind="regex", value="a+")


# ---- every spelling ----

SPELLINGS = [
    ({"regex": "a+"}, "regex", "a+"),
    ({"regex": ""}, "regex", ""),
    ({"guided_regex": "a+"}, "regex", "a+"),
    ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
    ({"ebnf": EBNF}, "ebnf", EBNF),
    ({"guided_grammar": EBNF}, "ebnf", EBNF),
    ({"structured_outputs": {"grammar": EBNF}}, "ebnf", EBNF),
    ({"choice": ["a", "é"]}, "choice", '["a","é"]'),
    ({"guided_choice": ["a", "é"]}, "choice", '["a","é"]'),
    ({"structured_outputs": {"choice": ["a", "é"]}}, "choice", '["a","é"]'),
    ({"guided_json": SCHEMA}, "json_schema", None),
    ({"guided_json": json.dumps(SCHEMA)}, "json_schema", None),
    ({"structured_outputs": {"json": SCHEMA}}, "json_schema", None),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json_schema", None),
    ({"structured_outputs": {"json_object": True}}, "json_object", ""),
    ({"response_format": {"type": "json_object"}}, "json_object", ""),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", None),
]


@BOTH
@pytest.mark.parametrize(("fields", "kind", "value"), SPELLINGS, ids=lambda x: str(x)[:40])
def test_one_constraint_has_many_names(gateway, path, fields, kind, value):
    found = reached(gateway, path, {**PLAIN[path], **fields})
    assert found.kind == kind
    assert is_schema(found) if value is None else found.value == value
    assert found.whitespace == "fixed"


@pytest.mark.parametrize(
    ("params", "kind", "value"),
    [
        ({"regex": "a+"}, "regex", "a+"),
        ({"regex": ""}, "regex", ""),
        ({"ebnf": EBNF}, "ebnf", EBNF),
        ({"choice": ["a", "é"]}, "choice", '["a","é"]'),
        ({"json_schema": json.dumps(SCHEMA)}, "json_schema", None),
        ({"json_schema": SCHEMA}, "json_schema", None),
        ({"json_object": True}, "json_object", ""),
    ],
)
def test_the_native_names(gateway, params, kind, value):
    found = reached(gateway, "/generate", {"text": "x", "sampling_params": params})
    assert found.kind == kind
    assert is_schema(found) if value is None else found.value == value


@pytest.mark.parametrize("schema", [True, {}, "true", "{}"])
def test_any_json_is_a_schema_too(gateway, schema):
    body = {"text": "x", "sampling_params": {"json_schema": schema}}
    assert reached(gateway, "/generate", body).kind == "json_schema"


TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<n>",
        "content": {"type": "json_schema", "json_schema": SCHEMA},
        "end": "</n>",
    },
}
OLDER_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<n>", "schema": SCHEMA, "end": "</n>"}],
    "triggers": ["<n>"],
}


@pytest.mark.parametrize("tag", [TAG, OLDER_TAG])
def test_structural_tags_by_every_name(gateway, tag):
    found = set()
    for path in (CHAT, COMPLETIONS):
        for fields in (
            {"response_format": tag},
            {"structural_tag": tag},
            {"structural_tag": json.dumps(tag)},
            {"structured_outputs": {"structural_tag": tag}},
        ):
            found.add(reached(gateway, path, {**PLAIN[path], **fields}))
    for value in (tag, json.dumps(tag)):
        body = {"text": "x", "sampling_params": {"structural_tag": value}}
        found.add(reached(gateway, "/generate", body))
    [one] = found
    assert one.kind == "structural_tag"
    wide = {"structural_tag": tag, "whitespace": "bounded"}
    assert reached(gateway, CHAT, hello(**wide)).whitespace == "bounded"


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ({"format": {"type": "nothing"}}, "nothing"),
        ({"type": "structural_tag"}, "structures"),
        (
            {
                **TAG,
                "format": {
                    **TAG["format"],
                    "content": {"type": "json_schema", "json_schema": {"$ref": "x"}},
                },
            },
            "$ref",
        ),
    ],
)
def test_structural_tags_that_are_none_are_named(gateway, tag, said):
    for fields, param in (
        ({"response_format": {"type": "structural_tag", **tag}}, "response_format"),
        ({"structural_tag": tag}, "structural_tag"),
    ):
        error = error_of(ask(gateway, CHAT, hello(**fields)), 400)
        assert error["param"] == param
        assert said in error["message"]
    assert gateway.requests == []


def test_equal_schemas_reach_the_engine_as_one(gateway):
    """Key order, blanks and annotations do not count."""
    other = {"title": "T", "required": ["n"], **SCHEMA, "description": "d"}
    bodies = [
        {"text": "x", "sampling_params": {"json_schema": each}}
        for each in (SCHEMA, json.dumps(other, indent=2))
    ]
    first, second = (reached(gateway, "/generate", body) for body in bodies)
    assert first == second


@BOTH
@pytest.mark.parametrize("where", ["beside", "inside"])
def test_whitespace_is_asked_for(gateway, path, where):
    fields = {"guided_json": SCHEMA, "whitespace": "bounded"}
    if where == "inside":
        fields = {"structured_outputs": {"json": SCHEMA, "whitespace": "bounded"}}
    assert reached(gateway, path, {**PLAIN[path], **fields}).whitespace == "bounded"


def test_native_whitespace(gateway):
    params = {"json_object": True, "whitespace": "bounded"}
    body = {"text": "x", "sampling_params": params}
    assert reached(gateway, "/generate", body) == Constraint(
        kind="json_object", whitespace="bounded"
    )


@pytest.mark.parametrize("name", ["whitespace", "constraint_mode"])
@pytest.mark.parametrize("also", [{}, {"regex": "a"}, {"choice": ["a"]}, {"ebnf": EBNF}])
def test_options_without_effect_are_named(gateway, name, also):
    value = {"whitespace": "bounded", "constraint_mode": "validate"}[name]
    error = error_of(ask(gateway, CHAT, hello(**also, **{name: value})), 400)
    assert error["param"] == name
    body = {"text": "x", "sampling_params": {**also, name: value}}
    error = error_of(ask(gateway, "/generate", body), 400)
    assert error["param"] == f"sampling_params.{name}"


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {}},
        {"structured_outputs": {"json": None, "json_object": False, "whitespace": "fixed"}},
        {"structured_outputs": {"disable_any_whitespace": True, "disable_fallback": True}},
        {"whitespace": "fixed", "constraint_mode": "enforce"},
        {"whitespace": None, "constraint_mode": None},
        {"structured_outputs": None, "regex": None, "guided_json": None, "choice": None},
    ],
)
@BOTH
def test_neutral_values_ask_for_nothing(gateway, path, fields):
    assert reached(gateway, path, {**PLAIN[path], **fields}) is None


def test_native_neutral_values_ask_for_nothing(gateway):
    nothing = {
        **dict.fromkeys(KINDS),
        "json_object": False,
        "whitespace": "fixed",
        "constraint_mode": "enforce",
    }
    assert reached(gateway, "/generate", {"text": "x", "sampling_params": nothing}) is None


def test_each_prompt_of_a_batch_has_its_own_constraint(gateway):
    params = [{"regex": "a+"}, {}, {"json_schema": SCHEMA}, None]
    answered(gateway, "/generate", {"text": ["a", "b", "c", "d"], "sampling_params": params})
    kinds = [request.constraint and request.constraint.kind for request in gateway.requests]
    assert kinds == ["regex", None, "json_schema", None]


def test_every_prompt_of_a_completion_is_constrained(gateway):
    answered(gateway, COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "regex": "a+"})
    assert [request.constraint.kind for request in gateway.requests] == ["regex", "regex"]


def test_a_choice_list_has_no_constraint(gateway):
    for name, value in (("regex", "a"), ("json_schema", "{}"), ("choice", ["a"])):
        body = {"input": [{"text": "x"}, {"choices": ["a", "b"]}], "sampling_params": {name: value}}
        error = error_of(ask(gateway, "/generate", body), 400)
        assert error["param"] == "sampling_params"
        assert name in error["message"]


def test_two_native_kinds_exclude_each_other(gateway):
    params = {"regex": "a", "json_schema": "{}"}
    error = error_of(ask(gateway, "/generate", {"text": "x", "sampling_params": params}), 400)
    assert error["code"] == "conflicting_parameters"
    assert error["message"].startswith("sampling_params.json_schema and sampling_params.regex")


# ---- every field has a mapping ----


def test_every_sampling_field_has_a_mapping():
    """Each native field is a sampling parameter or part of a constraint, and none is lost."""
    renamed = {"sampling_seed": "seed"}
    options = {*KINDS, "whitespace", "constraint_mode", "field_logprobs"}
    of_text = {"skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"}
    native = {renamed.get(name, name) for name in Sampling.__struct_fields__}
    assert native - options - of_text == set(SamplingParams.__struct_fields__)
    assert native >= options | of_text


def test_every_openai_field_of_a_constraint_has_a_mapping():
    fields = set(openai_schema.Sampled.__struct_fields__)
    assert set(_FIELDS) <= fields
    assert {"response_format", "structured_outputs", "whitespace", "constraint_mode"} <= fields
    assert {*_STRUCTURED, "whitespace"} == set(StructuredOutputs.__struct_fields__)
    assert set(_FIELDS.values()) | set(_STRUCTURED.values()) == set(KINDS)
