"""Schemas written as the arguments of a Python call: as sound as in JSON, and as wide."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from radixserve.errors import InvalidRequest
from radixserve.grammar.check import check, grammar
from radixserve.text.tool_calls_python import keywords, pythonic
from radixserve.text.tool_calls_stream import Argued, ToolCallParser
from radixserve.wire.params import Constraint
from tests.grammar_bytes import ByteGrammar, schema_grammar
from tests.grammar_random import SchemaMaker
from tests.unit.test_grammar_property import validator


def called(text: str) -> Any:
    """The arguments of f(text)."""
    parser = ToolCallParser(pythonic, ["f"])
    events = [*parser.feed(f"[f({text})]"), *parser.finish()]
    told = [event.text for event in events if isinstance(event, Argued)]
    assert told, text
    return json.loads("".join(told))


def tool_schemas(count: int) -> list[tuple[dict[str, Any], ByteGrammar, ByteGrammar]]:
    """Schema of two arguments, its grammar in Python and in JSON."""
    rng = random.Random(8)
    found = []
    while len(found) < count:
        maker = SchemaMaker(rng)
        schema = {
            "type": "object",
            "properties": {"first": maker.below(2), "second": maker.below(1)},
            "required": ["first"],
            "additionalProperties": False,
        }
        try:
            both = [schema_grammar(schema, whitespace=way) for way in ("python", "fixed")]
        except InvalidRequest:
            continue
        found.append((schema, *both))
    return found


def test_random_schemas() -> None:
    rng, drawn, offered = random.Random(3), 0, 0
    for schema, python, plain in tool_schemas(25):
        valid = validator(schema)
        for _ in range(4):
            if (text := python.draw(rng)) is not None:
                assert valid.is_valid(called(text)), f"{text} against {json.dumps(schema)}"
                drawn += 1
            if (text := plain.draw(rng)) is not None:
                spelt = keywords(text)
                assert python.accepts(spelt), f"{spelt} of {json.dumps(schema)}"
                offered += 1
    assert min(drawn, offered) > 60


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"a": {"enum": [True, None, "true"]}},
            ["a=True", "a=None", 'a="true"', ""],
            ["a=true", "a=null", "a=False", '"a"=True', "a: True", "a=True, b=1"],
        ),
        (
            {"a": {"type": "object"}, "b": {"type": "array", "items": {"type": "boolean"}}},
            ['a={"x": [True, None]}, b=[False]', "b=[]"],
            ['a={"x": true}', "b=[false]", "b=[], a={}"],
        ),
        ({"a": {"type": "string"}}, [r'a="\\/"', 'a="/"', r'a="\n\u00e9"'], [r'a="\/"', "a='x'"]),
        ({}, [""], ["a=1"]),
    ],
)
def test_what_is_written(schema, good, bad) -> None:
    found = schema_grammar({"type": "object", "properties": schema}, whitespace="python")
    assert [text for text in good if not found.accepts(text)] == []
    assert [text for text in bad if found.accepts(text)] == []


@pytest.mark.parametrize("name", ["class", "get-it", "1a", "", "a b", "\ufb01t"])
def test_names_that_python_cannot_write(name) -> None:
    schema = {"type": "object", "properties": {name: {"type": "integer"}}}
    grammar(Constraint(kind="json_schema", value=json.dumps(schema)))
    with pytest.raises(InvalidRequest, match="cannot name an argument"):
        grammar(Constraint(kind="json_schema", value=json.dumps(schema), whitespace="python"))


def test_a_structural_tag_says_which_way() -> None:
    tool = {"type": "json_schema", "json_schema": {"properties": {"a": {"const": None}}}}
    texts = {"json": 'f({"a": null})', "python": "f(a=None)"}
    for style, text in texts.items():
        form = {"type": "tag", "begin": "f(", "content": {**tool, "style": style}, "end": ")"}
        value = json.dumps({"format": form})
        constraint = check(Constraint(kind="structural_tag", value=value))
        found = ByteGrammar(constraint)
        assert [each for each in texts.values() if found.accepts(each)] == [text]
