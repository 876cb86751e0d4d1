"""Faults known from the field (G10 to G22), without a model: patterns, ends, blanks, bombs,
literals."""

from __future__ import annotations

import json
import random
import re
import time

import pytest

from radixserve.errors import InvalidRequest
from radixserve.grammar.check import check
from radixserve.wire.params import Constraint
from tests.grammar_bytes import accept, field, grammar_of, refusal, schema_grammar

# G10

LOOKS = [
    "[a-z](?!x)$",
    "^(?!x)a|b$",
    "^a(?!b)[a-z]$",
    "(?i)^abc$",
    "^(?i)abc$",
    r"a\b",
    r"\p{L}",
    r"(a)\1",
    "(?<=a)b",
]


@pytest.mark.parametrize("pattern", LOOKS)
def test_g10_refused_on_both_ways_alike(pattern):
    refusal("regex", pattern)
    message = refusal("json_schema", field({"type": "string", "pattern": pattern}))
    assert "#/properties/code/pattern" in message


def test_g10_look_aheads_at_the_start_are_honoured():
    for pattern, good, bad in (
        ("^(?!x)[a-z]+$", ["a", "ax"], ["xab", "", "1"]),
        ("^(?=a)[a-z]+$", ["a", "ab"], ["b", ""]),
        ("^(?=.*[0-9])(?!.*[(]).{2,4}$", ["a1", "1234"], ["ab", "1(", "1", "12345"]),
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", ["1.5", "-3", ".5"], ["", "-", ".", "x"]),
    ):
        quoted = [[json.dumps(text) for text in texts] for texts in (good, bad)]
        accept({"type": "string", "pattern": pattern}, *quoted)
        grammar = grammar_of("regex", pattern)
        assert all(map(grammar.accepts, good))
        assert not any(map(grammar.accepts, bad))


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^[a-c]+$", ["abc"], ["d", ""]),
        ("b", ["b", "abc", 'q"b'], ["a", ""]),
        ("^a|b$", ["ax", "xb"], ["xa", "bx"]),
        (r"^\d{2}-\w+\s?$", ["12-ab_", "12-a "], ["1-a", "12-é"]),
        ("^(ab|c)*?$", ["", "abc", "cab"], ["a"]),
        (r"^hi\!\/$", ["hi!/"], ["hi!"]),
        ("^[^a-z]$", ["A", "é", '"', "\\", "\n"], ["a", ""]),
        ("^.$", ["x", "🚀"], ["\n", "xx"]),
    ],
)
def test_g10_patterns(pattern, good, bad):
    dump = lambda text: json.dumps(text, ensure_ascii=False)  # noqa: E731
    schema = {"type": "string", "pattern": pattern}
    accept(schema, [dump(text) for text in good], [dump(text) for text in bad])


# G11


def test_g11_what_cannot_be_read_is_refused():
    accept({"type": "string", "pattern": "^hi\\!$"}, ['"hi!"'], ['"hi"'])
    assert "#/pattern" in refusal("json_schema", {"type": "string", "pattern": "["})
    assert "nothere" in refusal("ebnf", 'root ::= "a" nothere')
    for text in ("", "{", "[1]", "7", '"x"', '{"type": "wibble"}', '{"type": []}', "NaN"):
        refusal("json_schema", text)
    for text in ("[]", "{}", "[1]", "nope", '["\\ud800"]'):
        refusal("choice", text)
    for text in ("", "root", 'root ::= "a', 'a ::= "b"', "root ::= (", "root ::= [z-a]"):
        refusal("ebnf", text)
    assert "structural_tag" in refusal("structural_tag", "[]")


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": 1}}, "#/properties/a"),
        ({"properties": {"a": {"minLength": -1}}}, "#/properties/a/minLength"),
        ({"items": {"required": "x"}}, "#/items/required"),
        ({"anyOf": []}, "#/anyOf"),
        ({"enum": []}, "#/enum"),
        ({"properties": {"x/y": {"multipleOf": 0}}}, "#/properties/x~1y/multipleOf"),
        ({"$dynamicRef": "#a"}, "#/$dynamicRef"),
        ({"type": "string", "format": "regex"}, "#/format"),
    ],
)
def test_g11_malformed_schemas_name_the_place(schema, place):
    assert place in refusal("json_schema", schema)


# G16, G17


def test_g16_what_may_follow_the_end():
    for kind, value, good, bad in (
        ("ebnf", 'root ::= "yes" | "no"', ["yes", "no"], ["", "yesno"]),
        ("regex", r"\d{3}", ["123"], ["12", "1234"]),
        ("regex", "", [""], ["a"]),
        ("regex", "^$", [""], ["a"]),
        ("choice", '["a", "ab", "é"]', ["a", "ab", "é"], ["", "b", "aab"]),
    ):
        grammar = grammar_of(kind, value)
        assert all(map(grammar.accepts, good))
        assert not any(map(grammar.accepts, bad))


def runs_of_blanks(text: str) -> list[str]:
    return re.findall(r"[ \n\t\r]+", re.sub(r'"(\\.|[^"\\])*"', '""', text))


def test_g17_blanks_are_fixed_or_bounded():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    accept(schema, ['{"n": 1}'], ['{ "n": 1}', '{"n":1}', '{"n": 1} ', ' {"n": 1}'])
    free = '{ \n "n" :\t1        }'
    accept(schema, ['{"n":1}', free], [free.replace(" }", "  }")], whitespace="bounded")
    rng = random.Random(1)
    grammar = schema_grammar({"type": "object"}, whitespace="bounded")
    drawn = [text for _ in range(60) if (text := grammar.draw(rng)) is not None]
    assert len(drawn) > 20
    assert max(len(run) for text in drawn for run in [*runs_of_blanks(text), ""]) <= 8


def test_g17_json_object():
    grammar = grammar_of("json_object", "")
    assert grammar.accepts('{"a": [1, 2.5, {"b": null}], "c": " x "}')
    assert not any(map(grammar.accepts, ["[]", "1", "", '{"a": 1']))


# G19, G20


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


BOMBS = [
    ("json_schema", json.dumps({"enum": [f"value {i}" for i in range(20000)]})),
    ("json_schema", json.dumps(nested(300))),
    ("json_schema", '{"items":' * 100000 + "true" + "}" * 100000),
    ("regex", "((a{1,100}){1,100}){1,100}"),
    ("regex", "(" * 500 + "a" + ")" * 500),
    ("ebnf", 'root ::= (("a"?)*)*'),
    ("ebnf", 'root ::= "" | "(" root ")" | root root'),
    ("ebnf", 'root ::= a root "x" | "y"\na ::= b*\nb ::= "q"?'),
    ("json_schema", json.dumps({"type": "string", "pattern": "(.*a){20}.{20}b"})),
    (
        "json_schema",
        json.dumps({"allOf": [{"anyOf": [{"minimum": i}, {"maximum": -i}]} for i in range(30)]}),
    ),
]


@pytest.mark.parametrize(("kind", "value"), BOMBS)
def test_g19_bombs_are_refused_in_time(kind, value):
    began = time.monotonic()
    with pytest.raises(InvalidRequest):
        check(Constraint(kind=kind, value=value))
    assert time.monotonic() - began < 10


def test_g20_big_but_innocent_bounds():
    bounded = {"type": "string", "maxLength": 2000}
    names = [f"p{i}" for i in range(30)]
    inner = {"type": "array", "maxItems": 200}
    for schema in (
        {"type": "string", "maxLength": 65536},
        {"type": "object", "properties": dict.fromkeys(names, bounded), "required": names},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 10000},
        {"type": "array", "items": {"const": 1}, "minItems": 5000, "maxItems": 5000},
        {**inner, "items": {**inner, "items": {**inner, "items": {"type": "boolean"}}}},
    ):
        began = time.monotonic()
        schema_grammar(schema)
        assert time.monotonic() - began < 2
    accept({"type": "string", "maxLength": 65536}, [f'"{"x" * 65536}"'], [f'"{"x" * 65537}"'])


# G22


def test_g22_literals_beyond_ascii():
    for values in (["在线", "离线"], ['a"b', "c\\d", "x\ny", "🚀"], ["f\ndef t():\n    x"]):
        grammar = schema_grammar({"enum": values})
        for value in values:
            assert grammar.accepts(json.dumps(value, ensure_ascii=False))
    named = {"type": "object", "properties": {'a"b': True, "é": {"type": "null"}}}
    accept({**named, "required": ['a"b', "é"]}, ['{"a\\"b": 1, "é": null}'], ['{"é": null}'])
    regex = grammar_of("regex", "[à-ÿ]{3}")
    assert regex.accepts("àéÿ")
    assert not any(map(regex.accepts, ["àé", "abc", "àéÿà"]))
    ebnf = grammar_of("ebnf", "root ::= [一-龥]{2}")
    assert ebnf.accepts("在线")
    assert not ebnf.accepts("在")


def test_strings_never_hold_half_a_pair():
    grammar = schema_grammar({"type": "string"})
    good = ['"\\ud83d\\ude80"', '"\\u00e9\\n\\/"', '"🚀"', '"\\uD7ff"']
    bad = ['"\\ud83d"', '"\\ude80"', '"\\ud83dx"', '"\\ud83d\\u0041"', '"\n"', '"\x01"', '"\\x41"']
    assert all(map(grammar.accepts, good))
    assert not any(map(grammar.accepts, bad))
    accept({"type": "string", "maxLength": 1}, good[:1], ['"\\ud83d\\ude80x"'])
