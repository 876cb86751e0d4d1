"""Faults known from the field (G cases), without a model: accepted, refused by name, or never
said."""

from __future__ import annotations

import json
import time

import pytest

from tests.grammar_bytes import accept, field, refusal

# G01


def test_g01_pattern_beside_lengths():
    accept(
        field({"type": "string", "pattern": "^[A-F]+$", "maxLength": 4}),
        ['{"code": "A"}', '{"code": "ABCD"}'],
        ['{"code": "ABCDE"}', '{"code": ""}', '{"code": "G"}'],
    )
    accept(
        field({"type": "string", "pattern": "^[A-F]+$", "minLength": 6}),
        ['{"code": "ABCDEF"}', '{"code": "ABCDEFABCDEF"}'],
        ['{"code": "ABCDE"}'],
    )
    accept(
        {"type": "array", "items": {"type": "string", "pattern": "^[A-F]+$", "maxLength": 4}},
        ['["ABCD", "A"]', "[]"],
        ['["ABCDE"]'],
    )


def test_g01_format_beside_a_length():
    schema = field({"type": "string", "format": "email", "maxLength": 9})
    accept(schema, ['{"code": "ab@c.de"}'], ['{"code": "abcdef@c.de"}', '{"code": "a"}'])


def test_g01_properties_named_like_keywords():
    names = ["pattern", "maxLength", "not", "$ref", "type", "enum", "required", "format"]
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "required": names,
    }
    text = json.dumps(dict.fromkeys(names, 1))
    accept(schema, [text], [text.replace("1", '"1"')])


# G02


def test_g02_siblings_of_any_of():
    schema = {
        "type": "object",
        "properties": {"m": {"type": "string"}, "k": {"type": "string"}},
        "additionalProperties": False,
        "anyOf": [{"required": ["m"]}, {"required": ["k"]}],
    }
    accept(
        schema,
        ['{"m": "x"}', '{"k": "x"}', '{"m": "x", "k": ""}'],
        ["7", "{}", '{"zzz": 1}', '{"m": 1}'],
    )


# G04


def test_g04_keywords_beside_a_reference():
    schema = {
        "$defs": {"N": {"type": "integer"}},
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/N", "minimum": 5, "description": "x"}},
        "required": ["n"],
    }
    accept(schema, ['{"n": 5}', '{"n": 123}'], ['{"n": 4}', '{"n": -6}', '{"n": 5.5}'])
    schema = {"$defs": {"S": {"type": "string"}}, "$ref": "#/$defs/S", "const": "a"}
    accept(schema, ['"a"'], ['"b"', "1"])


def test_g04_annotations_beside_a_reference():
    note = {"description": "x", "title": "t", "default": 1, "examples": [1], "deprecated": True}
    schema = {"$defs": {"N": {"type": "boolean"}}, "$ref": "#/$defs/N", **note}
    accept(schema, ["true"], ["1"])


# G05


def test_g05_a_pointer_without_its_hash_is_followed():
    schema = {
        "type": "object",
        "properties": {"c": {"$ref": "/$defs/C"}},
        "required": ["c"],
        "$defs": {"C": {"enum": ["r", "g"]}},
    }
    accept(schema, ['{"c": "r"}'], ['{"c": 1}', '{"c": "x"}'])


@pytest.mark.parametrize(
    "reference", ["other.json#/x", "#named", "#/$defs/Missing", "https://x.org/s.json"]
)
def test_g05_references_to_nowhere(reference):
    schema = {"type": "object", "properties": {"c": {"$ref": reference}}, "$defs": {}}
    message = refusal("json_schema", schema)
    assert "#/properties/c/$ref" in message


def test_g05_a_loop_of_references():
    began = time.monotonic()
    loop = {"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}
    assert "$ref" in refusal("json_schema", loop)
    two = {"A": {"$ref": "#/$defs/B"}, "B": {"allOf": [{"$ref": "#/$defs/A"}]}}
    assert "$ref" in refusal("json_schema", {"$defs": two, "$ref": "#/$defs/A"})
    assert time.monotonic() - began < 2


def test_g05_pointers_anywhere_and_anchors():
    schema = {
        "$id": "https://x.org/s.json",
        "type": "object",
        "properties": {
            "a": {"type": "array", "prefixItems": [{"enum": ["~/ö"]}], "maxItems": 1},
            "b": {"$ref": "#/properties/a/prefixItems/0"},
            "c": {"$ref": "#/components/x~1y/z%20z"},
            "d": {"$ref": "https://x.org/s.json#/properties/b"},
            "e": {"$ref": "#here"},
        },
        "required": ["b", "c", "d", "e"],
        "components": {"x/y": {"z z": {"type": "boolean"}}},
        "$defs": {"H": {"$anchor": "here", "type": "null"}},
    }
    good = '{"b": "~/ö", "c": true, "d": "~/ö", "e": null}'
    accept(schema, [good], [good.replace("true", "1")])


def test_g05_recursion_through_values():
    schema = {
        "$defs": {
            "T": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer"},
                    "kids": {"type": "array", "items": {"$ref": "#/$defs/T"}},
                },
                "required": ["v"],
            }
        },
        "$ref": "#/$defs/T",
    }
    accept(schema, ['{"v": 1, "kids": [{"v": 2}, {"v": 3, "kids": []}]}'], ['{"kids": []}'])


def test_g05_a_value_that_never_ends():
    endless = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    assert "no value" in refusal("json_schema", endless)


# G07


def test_g07_containers_without_a_shape():
    accept({"type": "object", "required": ["a"]}, ['{"a": [1, {"b": null}]}'], ["{}", '{"b": 1}'])
    accept({"type": "array", "minItems": 2}, ["[1, 2]", '["", {}, 3]'], ["[]", "[1]"])
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "zz"]}
    accept(schema, ['{"a": 1, "zz": "x"}'], ['{"a": 1}', "{}"])
    accept({"type": "array", "contains": {"const": 1}}, ["[1]", '[2, 1, "a"]'], ["[]", "[2]"])
    accept({"type": "object"}, ["{}", '{"q": {"r": 1}}'], ["[]", "1"])


# G08


def test_g08_not():
    accept({"type": "string", "not": {"const": "x"}}, ['"y"', '"xx"', '""'], ['"x"', "1"])
    accept({"type": ["string", "integer"], "not": {"type": "string"}}, ["1"], ['"x"'])
    accept({"type": "integer", "not": {"enum": [1, 10]}}, ["2", "100", "-1"], ["1", "10"])


def test_g08_if_then_else():
    schema = {
        "type": "object",
        "properties": {"t": {"enum": ["a", "b"]}, "n": {"type": "integer"}},
        "required": ["t"],
        "if": {"properties": {"t": {"const": "a"}}},
        "then": {"required": ["n"]},
        "else": {"properties": {"n": False}},
    }
    accept(schema, ['{"t": "a", "n": 1}', '{"t": "b"}'], ['{"t": "a"}', '{"t": "b", "n": 1}'])


def test_g08_dependent_required():
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in "abc"},
        "dependentRequired": {"a": ["b"]},
    }
    accept(schema, ["{}", '{"a": 1, "b": 2}', '{"b": 1, "c": 1}'], ['{"a": 1}', '{"a": 1, "c": 1}'])


def test_g08_unique_items():
    schema = {"type": "array", "items": {"enum": ["r", "g", "b"]}, "uniqueItems": True}
    accept(schema, ["[]", '["b", "r", "g"]'], ['["r", "r"]', '["r", "g", "r"]'])
    many = {"type": "array", "items": {"enum": list(range(40))}, "uniqueItems": True}
    accept(many, ["[0, 7, 39]"], ["[7, 7]"])
    assert "uniqueItems" in refusal("json_schema", {"type": "array", "uniqueItems": True})


def test_g08_one_of_that_overlaps():
    accept(
        {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 5}]},
        ["3", "5.5"],
        ["7", "2.5", '"x"'],
    )
    accept({"oneOf": [{"minimum": 2}, {"type": "integer"}]}, ["1", '"x"'], ["3", "1.5"])


def test_g08_one_of_with_discriminators():
    branches = [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, "v": {"type": of}},
            "required": ["kind", "v"],
        }
        for kind, of in (("i", "integer"), ("s", "string"), ("n", "null"))
    ]
    accept(
        {"oneOf": branches, "discriminator": {"propertyName": "kind"}},
        ['{"kind": "i", "v": 1}', '{"kind": "s", "v": "x"}', '{"kind": "n", "v": null}'],
        ['{"kind": "i", "v": "x"}', '{"kind": "x", "v": 1}', '{"v": 1}'],
    )


def test_g08_multiples():
    accept({"type": "number", "multipleOf": 0.5}, ["1.5", "2", "-0.5", "0"], ["1.25", "0.1"])
    accept({"type": "number", "multipleOf": 0.01}, ["1.25", "0.07", "3"], ["1.255"])
    accept({"type": ["integer", "null"], "multipleOf": 5}, ["null", "15", "-5"], ["7", "1"])
    big = {"type": "integer", "multipleOf": 123457}
    assert "multipleOf" in refusal("json_schema", big)


def test_g08_no_false_alarm_in_values():
    accept({"const": {"not": 1}}, ['{"not": 1}'], ["{}"])
    accept({"enum": [{"if": 1}, "uniqueItems"]}, ['{"if": 1}', '"uniqueItems"'], ["1"])
    accept({"type": "boolean", "default": {"not": 1}, "examples": [{"$ref": "x"}]}, ["true"], [])


def test_g08_a_negation_evaluates_nothing():
    """As in the standard: what stands under `not`, however deep, is unevaluated outside of it."""
    whole = {"type": "integer"}
    for inner in (
        {"contains": False},
        {"not": {"items": whole}},
        {"not": {"prefixItems": [whole]}},
    ):
        schema = {"type": "array", "not": inner, "unevaluatedItems": False}
        accept(schema, ["[]"], ["[1]", "[false]", "[1, 1]"])
    named = {"properties": {"a": whole}}
    for inner in (named, {**named, "unevaluatedProperties": False}):
        schema = {"type": "object", "not": {"not": inner}, "unevaluatedProperties": False}
        accept(schema, ["{}"], ['{"a": 1}', '{"a": "x"}'])
