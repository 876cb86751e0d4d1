"""Faults known from the field (G cases), without a model: accepted, refused by name, or never
said."""

from __future__ import annotations

import json
import random
import re
import time

import pytest

from radixserve.errors import InvalidRequest
from radixserve.grammar.check import check
from radixserve.wire.params import Constraint
from tests.grammar_bytes import ByteGrammar, schema_grammar

CLOSED = {"additionalProperties": False}


def of(kind: str, value: str) -> ByteGrammar:
    return ByteGrammar(Constraint(kind=kind, value=value))


def accept(schema: object, good: list[str], bad: list[str], **options: str) -> None:
    grammar = schema_grammar(schema, **options)
    for text in good:
        assert grammar.accepts(text), f"{text} refused by\n{grammar.text}"
    for text in bad:
        assert not grammar.accepts(text), f"{text} accepted by\n{grammar.text}"


def refusal(kind: str, value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(InvalidRequest) as caught:
        check(Constraint(kind=kind, value=text))
    assert caught.value.status == 400
    assert caught.value.code == "unsupported_schema"
    assert caught.value.param == kind
    return caught.value.message


def field(schema: object) -> dict[str, object]:
    return {"type": "object", "properties": {"code": schema}, "required": ["code"], **CLOSED}


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


# G10

LOOKS = [
    "^(?!x)[a-z]+$",
    "^(?=a)[a-z]+$",
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
        grammar = of(kind, value)
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
    grammar = of("json_object", "")
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
    regex = of("regex", "[à-ÿ]{3}")
    assert regex.accepts("àéÿ")
    assert not any(map(regex.accepts, ["àé", "abc", "àéÿà"]))
    ebnf = of("ebnf", "root ::= [一-龥]{2}")
    assert ebnf.accepts("在线")
    assert not ebnf.accepts("在")


def test_strings_never_hold_half_a_pair():
    grammar = schema_grammar({"type": "string"})
    good = ['"\\ud83d\\ude80"', '"\\u00e9\\n\\/"', '"🚀"', '"\\uD7ff"']
    bad = ['"\\ud83d"', '"\\ude80"', '"\\ud83dx"', '"\\ud83d\\u0041"', '"\n"', '"\x01"', '"\\x41"']
    assert all(map(grammar.accepts, good))
    assert not any(map(grammar.accepts, bad))
    accept({"type": "string", "maxLength": 1}, good[:1], ['"\\ud83d\\ude80x"'])
