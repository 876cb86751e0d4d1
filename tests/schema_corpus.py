"""Schemas for tests that ask a real model: small ones in many wrappings, and the realistic ones.

Owns: CORPUS by name, at least 150 of them, and what of them jsonschema does not know. Each can be
enforced; outputs of 96 tokens are possible.
"""

from __future__ import annotations

from typing import Any

from benchmarks.schemas import SCHEMAS

LEAVES: dict[str, Any] = {
    "string": {"type": "string"},
    "string min": {"type": "string", "minLength": 3},
    "string max": {"type": "string", "maxLength": 7},
    "string min max": {"type": "string", "minLength": 2, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[a-c]+-[0-9]{2}$"},
    "pattern inside": {"type": "string", "pattern": "ab", "maxLength": 6},
    "pattern max": {"type": "string", "pattern": "^[A-F]+$", "maxLength": 4},
    "pattern min": {"type": "string", "pattern": "^[A-F]+$", "minLength": 6, "maxLength": 9},
    "pattern escapes": {"type": "string", "pattern": '^["\\\\/]{1,3}$'},
    "pattern unicode": {"type": "string", "pattern": "^[à-ÿ一-龥]{1,3}$"},
    "pattern dot": {"type": "string", "pattern": "^.{2,4}$"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "email": {"type": "string", "format": "email"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "integer": {"type": "integer"},
    "integer min": {"type": "integer", "minimum": 17},
    "integer max": {"type": "integer", "maximum": -3},
    "integer range": {"type": "integer", "minimum": -12, "maximum": 345},
    "integer exclusive": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    "integer draft 4": {"type": "integer", "minimum": 0, "exclusiveMinimum": True,
                        "$schema": "http://json-schema.org/draft-04/schema#"},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
    "half": {"type": "number", "multipleOf": 0.5},
    "cents": {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 100},
    "number": {"type": "number"},
    "number range": {"type": "number", "minimum": -1.5, "maximum": 2.25},
    "number exclusive": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "enum": {"enum": ["red", "green", 7, None, True, {"a": 1}]},
    "enum escapes": {"enum": ['a"b', "c\\d", "x\ny", "🚀", "在线"]},
    "const": {"const": "f\ndef t():\n    x"},
    "const object": {"const": {"not": 1, "if": [1, 2]}},
    "types": {"type": ["integer", "null"], "multipleOf": 5},
    "nullable": {"type": "string", "maxLength": 5, "nullable": True},
    "anyOf": {"anyOf": [{"type": "integer", "minimum": 5}, {"const": "none"}]},
    "anyOf siblings": {"type": "integer", "anyOf": [{"minimum": 100}, {"maximum": -100}]},
    "oneOf types": {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 4}]},
    "oneOf overlap": {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 20},
                                {"type": "integer", "minimum": 10, "maximum": 40}]},
    "allOf": {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 30}]},
    "not type": {"not": {"type": ["string", "object", "array", "number"]}},
    "not enum": {"enum": [1, 2, 3, 4], "not": {"enum": [2, 4]}},
    "if": {"if": {"type": "integer"}, "then": {"minimum": 50, "maximum": 60},
           "else": {"const": "other"}},
    "array": {"type": "array", "items": {"type": "integer"}, "maxItems": 4},
    "array min": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 3, "maxItems": 5},
    "tuple": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}],
              "items": False, "minItems": 2},
    "tuple draft 7": {"type": "array", "items": [{"type": "boolean"}, {"enum": ["x", "y"]}],
                      "additionalItems": False, "minItems": 2,
                      "$schema": "http://json-schema.org/draft-07/schema#"},
    "unique": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True,
               "minItems": 2},
    "contains": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9},
                 "contains": {"const": 7}, "maxItems": 4},
    "object": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"const": "x"}},
               "required": ["a"], "additionalProperties": False},
    "object open": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                    "additionalProperties": {"type": "boolean"}},
    "object any": {"type": "object", "required": ["zz"]},
    "object names": {"type": "object", "properties": {'a"b': {"type": "integer"},
                     "é": {"type": "boolean"}}, "required": ['a"b', "é"],
                     "additionalProperties": False},
    "dependent": {"type": "object", "properties": {"a": {"type": "boolean"},
                  "b": {"type": "boolean"}}, "dependentRequired": {"a": ["b"]},
                  "additionalProperties": False},
    "either key": {"type": "object", "properties": {"m": {"type": "boolean"},
                   "k": {"type": "boolean"}}, "additionalProperties": False,
                   "anyOf": [{"required": ["m"]}, {"required": ["k"]}]},
    "pattern properties": {"type": "object", "patternProperties": {"^x[0-9]$": {"type": "integer"}},
                           "additionalProperties": False, "maxProperties": 3},
    "any": {},
}  # fmt: skip

WHOLE: dict[str, Any] = {
    "ref": {"$defs": {"N": {"type": "integer"}}, "type": "object",
            "properties": {"n": {"$ref": "#/$defs/N", "minimum": 5, "description": "x"}},
            "required": ["n"], "additionalProperties": False},
    "recursive": {"$defs": {"L": {"type": "object", "properties": {"v": {"type": "integer"},
                  "next": {"anyOf": [{"$ref": "#/$defs/L"}, {"type": "null"}]}},
                  "required": ["v", "next"], "additionalProperties": False}}, "$ref": "#/$defs/L"},
    "definitions": {"definitions": {"c": {"enum": ["r", "g"]}}, "type": "object",
                    "properties": {"c": {"$ref": "#/definitions/c"}}, "required": ["c"]},
    "matrix": {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "array",
               "minItems": 2, "maxItems": 2, "items": {"type": "integer"}}},
    "discriminated": {"oneOf": [
        {"type": "object", "properties": {"t": {"const": "a"}, "x": {"type": "integer"}},
         "required": ["t", "x"], "additionalProperties": False},
        {"type": "object", "properties": {"t": {"const": "b"}, "y": {"type": "boolean"}},
         "required": ["t", "y"], "additionalProperties": False}]},
}  # fmt: skip


def _dialect(schema: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": schema["$schema"]} if "$schema" in schema else {}


def _member(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"v": schema, "then": {"enum": ["yes", "no"]}},
        "required": ["v", "then"],
        "additionalProperties": False,
        **_dialect(schema),
    }


def _items(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema, "minItems": 1, "maxItems": 2, **_dialect(schema)}


CORPUS: dict[str, Any] = {
    **{f"leaf: {name}": schema for name, schema in LEAVES.items()},
    **{f"member: {name}": _member(schema) for name, schema in LEAVES.items()},
    **{f"items: {name}": _items(schema) for name, schema in LEAVES.items()},
    **{f"whole: {name}": schema for name, schema in WHOLE.items()},
    **{f"real: {name}": schema for name, (_, schema) in SCHEMAS.items()},
}


def without_nullable(schema: Any) -> Any:
    """OpenAPI's keyword in words that jsonschema knows."""
    if isinstance(schema, list):
        return [without_nullable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: without_nullable(value) for key, value in schema.items() if key != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") is True else plain
