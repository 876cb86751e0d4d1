"""Constraints on the wire, canonical forms, older drafts, reports."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from radixserve.errors import InvalidRequest
from radixserve.grammar.check import check
from radixserve.grammar.report import explain
from radixserve.wire.params import Constraint
from tests.grammar_bytes import schema_grammar


def canonical(schema: object) -> str:
    return check(Constraint(kind="json_schema", value=json.dumps(schema))).value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"kind": "xml"}, "kind"),
        ({"kind": "regex", "value": 7}, "regex"),
        ({"kind": "regex", "value": "\ud800"}, "regex"),
        ({"kind": "regex", "value": "a" * 10000}, "regex"),
        ({"kind": "json_object", "value": "{}"}, "json_object"),
        ({"kind": "json_schema", "value": "{}", "whitespace": "free"}, "whitespace"),
    ],
)
def test_constraints_are_checked_on_construction(fields, param):
    with pytest.raises(InvalidRequest) as caught:
        Constraint(**fields)
    assert caught.value.param == param


def test_constraints_cross_the_wire():
    sent = Constraint(kind="choice", value='["a"]', whitespace="bounded")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Constraint) == sent


def test_canonical_forms():
    one = {"type": "object", "title": "T", "properties": {"b": {}, "a": {"$comment": "x"}}}
    two = {"properties": {"b": True, "a": {"default": 1}}, "type": ["object"], "x-own": [1]}
    assert canonical(one) == canonical(two)
    assert canonical(one) != canonical({"type": "object", "properties": {"a": {}, "b": {}}})
    for schema in (one, {"$ref": "#/$defs/A", "$defs": {"A": {"items": {"$ref": "#"}}}}):
        text = canonical(schema)
        again = check(Constraint(kind="json_schema", value=text))
        assert check(again) == again


OLDER = [
    ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3"]),
    ({"type": "integer", "maximum": 3, "exclusiveMaximum": False}, ["3"], ["4"]),
    (
        {
            "type": "array",
            "items": [{"type": "integer"}, {"type": "null"}],
            "additionalItems": False,
        },
        ["[]", "[1, null]"],
        ["[null]", "[1, null, 1]"],
    ),
    ({"type": "string", "nullable": True}, ["null", '"x"'], ["1"]),
    ({"enum": ["a"], "nullable": True}, ["null", '"a"'], ['"b"']),
    (
        {
            "type": "object",
            "properties": {"a": True, "b": {"type": "null"}},
            "dependencies": {"a": ["b"]},
        },
        ["{}", '{"a": 1, "b": null}'],
        ['{"a": 1}'],
    ),
    ({"definitions": {"x": {"const": 1}}, "$ref": "#/definitions/x"}, ["1"], ["2"]),
    ({"type": "object", "properties": {"a": False, "b": True}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
]


@pytest.mark.parametrize(("schema", "good", "bad"), OLDER)
def test_drafts_from_four_on(schema, good, bad):
    grammar = schema_grammar(schema)
    for text in good:
        assert grammar.accepts(text), grammar.text
    for text in bad:
        assert not grammar.accepts(text), grammar.text


def test_reports():
    report = explain(
        {
            "type": "object",
            "title": "T",
            "properties": {
                "not": {"type": "string", "pattern": "^a"},
                "d": {"format": "int32", "allOf": [{"minimum": 1}]},
            },
        }
    )
    found = {finding.pointer: finding.verdict for finding in report.findings}
    assert report.accepted
    assert found["/properties/not/pattern"] == "enforced"
    assert found["/properties/d/format"] == found["/title"] == "ignored"
    assert found["/properties/d/allOf"] == "rewritten"
    assert "/properties/not" not in found
    refused = explain({"items": {"pattern": "(?=a)"}})
    assert not refused.accepted
    assert refused.findings[-1].pointer == "/items/pattern"
    deep: dict[str, object] = {}
    for _ in range(5000):
        deep = {"items": deep}
    assert not explain(deep).accepted


def test_checking_needs_neither_torch_nor_the_grammar_engine():
    code = (
        "import sys, radixserve.grammar.report\n"
        "print(sorted(sys.modules.keys() & {'torch', 'xgrammar', 'transformers'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
