"""What JSON can spell and nothing here can hold, anywhere in a schema: refused by its place."""

from __future__ import annotations

import json

import pytest

from radixserve.errors import InvalidRequest
from radixserve.grammar import check
from radixserve.grammar.offline import Grammar
from radixserve.wire.params import Constraint

HUGE = "1" + "0" * 400
COUNTS = ("minLength", "maxLength", "minItems", "maxProperties", "minContains")
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "multipleOf", "const")


def message(text: str, kind: str = "json_schema") -> str:
    with pytest.raises(InvalidRequest) as raised:
        check.check(Constraint(kind=kind, value=text))
    assert (raised.value.param, raised.value.code) == (kind, "unsupported_schema")
    return raised.value.message


@pytest.mark.parametrize("number", [HUGE, f"-{HUGE}", "1e400", "-1e400"])
@pytest.mark.parametrize("keyword", [*NUMBERS, *COUNTS])
def test_numbers_beyond_all_doubles(keyword: str, number: str) -> None:
    text = f'{{"properties": {{"a/b": {{"{keyword}": {number}}}}}}}'
    assert f"#/properties/a~1b/{keyword}: a number that is too large" in message(text)


def test_numbers_beyond_all_doubles_inside_values() -> None:
    assert "#/enum/1/a/0: a number" in message(f'{{"enum": [1, {{"a": [{HUGE}, 2.5]}}]}}')
    assert Grammar.accepts('{"enum": [1e308, 2.5], "multipleOf": 0.5}', "2.5")


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (r'{"const": "\ud800"}', "#/const:"),
        (r'{"enum": [["a", "x\udfffy"], 1]}', "#/enum/0/1:"),
        (r'{"const": {"\ud800": 1}}', "#/const:"),
        (r'{"properties": {"\udc00": {}}}', "#/properties:"),
        (r'{"type": "object", "required": ["a", "\ud800"]}', "#/required/1:"),
        (r'{"dependentRequired": {"a": ["\ud801"]}}', "#/dependentRequired/a/0:"),
        (r'{"propertyNames": {"enum": ["\ud800", "a"]}}', "#/propertyNames/enum/0:"),
        (r'{"not": {"const": "\ud800"}}', "#/not/const:"),
        (r'{"type": "string", "pattern": "\ud800"}', "#/pattern:"),
    ],
)
def test_lone_surrogates(schema: str, place: str) -> None:
    found = message(schema)
    assert place in found
    assert "lone surrogate" in found


@pytest.mark.parametrize("value", [r'"\ud800"', HUGE])
def test_a_schema_inside_a_structural_tag_is_no_exception(value: str) -> None:
    tag = f'{{"type": "json_schema", "json_schema": {{"const": {value}}}}}'
    found = message(f'{{"type": "structural_tag", "format": {tag}}}', "structural_tag")
    assert "#/format/json_schema" in found


def test_pairs_are_characters() -> None:
    assert Grammar.accepts(r'{"const": "\ud83d\ude00"}', '"\U0001f600"')


@pytest.mark.parametrize("step", ["00", "\u0660", "\u00b2", "-1", "+0", "1", ""])
def test_a_place_in_a_list_is_spelt_in_one_way(step: str) -> None:
    schema = {"$ref": f"#/allOf/{step}", "allOf": [{"type": "null"}]}
    assert "nothing stands at" in message(json.dumps(schema))
