"""Weakening: what check() refuses is left out, and nothing that was allowed is lost."""

from __future__ import annotations

import itertools
import json
import random

import jsonschema
import pytest

from radixserve.errors import InvalidRequest
from radixserve.grammar.check import check
from radixserve.grammar.weaken import weaken
from radixserve.wire.params import Constraint
from tests.grammar_random import VALUES, SchemaMaker, ValueMaker, modern

UNIQUE = {"type": "array", "uniqueItems": True, "items": {"type": "string"}}
NEVER = {"type": "string", "format": "uri-template"}


def schema(value) -> Constraint:
    return Constraint(kind="json_schema", value=json.dumps(value))


def weakened(value):
    """The weaker schema; checks that the one as sent is refused."""
    with pytest.raises(InvalidRequest):
        check(schema(value))
    found = weaken(schema(value))
    assert check(found) == found
    return json.loads(found.value) if found.value else {"type": ["object"]}


def test_what_can_be_enforced_stays_as_it_is():
    wanted = schema({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]})
    assert weaken(wanted) == check(wanted)
    assert weaken(Constraint(kind="regex", value="a+")) == check(
        Constraint(kind="regex", value="a+")
    )


def test_only_the_keyword_goes():
    found = weakened(
        {
            "type": "object",
            "properties": {"tags": UNIQUE, "n": {"type": "integer"}},
            "required": ["tags", "n"],
            "additionalProperties": False,
        }
    )
    assert found["required"] == ["tags", "n"]
    assert found["additionalProperties"] is False
    assert found["properties"]["tags"] == {"type": ["array"], "items": {"type": ["string"]}}


def test_several_keywords_go_one_after_another():
    found = weakened({"type": "object", "properties": {"a": UNIQUE, "b": NEVER, "c": NEVER}})
    assert found["properties"]["b"] == {"type": ["string"]} == found["properties"]["c"]
    assert "uniqueItems" not in found["properties"]["a"]


def test_a_property_may_be_called_like_a_keyword():
    names = ["not", "if", "oneOf", "items", "contains", "$ref/x~y"]
    found = weakened(
        {
            "type": "object",
            "properties": {name: NEVER for name in names},
            "required": names,
            "additionalProperties": False,
        }
    )
    assert found["properties"] == {name: {"type": ["string"]} for name in names}
    assert found["required"] == names


def test_overlapping_one_of_becomes_any_of():
    branch = {
        "type": "array",
        "items": {"type": "array", "uniqueItems": True, "items": {"type": "string"}},
    }
    found = weakened(
        {
            "oneOf": [
                branch,
                {"type": "string", "pattern": "^(a|b)*c{1,40}$", "minLength": 5, "maxLength": 300},
            ]
        }
    )
    assert "oneOf" not in found


def test_what_stands_inside_not_goes_with_it():
    found = weakened({"type": "string", "not": {"pattern": "^(?=a)(?<=b)x"}, "maxLength": 3})
    assert found == {"type": ["string"], "maxLength": 3}


def test_what_names_go_with_their_keyword():
    found = weakened(
        {
            "type": "object",
            "patternProperties": {"(?<=a)b": {}},
            "additionalProperties": False,
        }
    )
    assert found == {"type": ["object"]}


def test_what_stands_in_a_definition_is_found_there():
    found = weakened(
        {
            "$defs": {"T": UNIQUE},
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/T"}},
            "required": ["a"],
        }
    )
    assert found["required"] == ["a"]
    [definition] = found["$defs"].values()
    assert definition == {"type": ["array"], "items": {"type": ["string"]}}


def test_older_spellings_are_found():
    found = weakened(
        {"type": "array", "items": [NEVER, {"type": "integer"}], "additionalItems": NEVER}
    )
    assert found["prefixItems"] == [{"type": ["string"]}, {"type": ["integer"]}]
    assert found["items"] == {"type": ["string"]}


def test_a_schema_that_is_refused_as_a_whole_gives_up_its_combinators():
    names = [f"a{i}" for i in range(40)]
    found = weakened(
        {
            "type": "object",
            "properties": {name: {"type": "integer"} for name in names},
            "dependentRequired": {a: [b] for a, b in itertools.pairwise(names)},
        }
    )
    assert found["properties"].keys() == set(names)
    assert "dependentRequired" not in found


@pytest.mark.parametrize(("root", "least"), [("object", ["object"]), ("string", None)])
def test_at_worst_any_object_or_any_json_is_left(root, least):
    many = {f"p{i}": NEVER for i in range(200)}
    given = (
        {"type": root, "properties": many}
        if root == "object"
        else {
            "anyOf": [
                {"type": "array", "prefixItems": [NEVER], "contains": {"const": i}}
                for i in range(200)
            ]
        }
    )
    found = weakened(given)
    assert (found if isinstance(found, bool) else found.get("type")) == (least or True)


@pytest.mark.parametrize("value", [["a", "\ud800"], [10**400, 1], [[1], ["\udfff", [2]]]])
def test_a_value_that_cannot_be_held_takes_its_whole_keyword_along(value):
    """Another value in its place would be none that was asked for."""
    found = weakened({"type": "object", "properties": {"a": {"enum": value}, "b": {"const": 1}}})
    assert found["properties"] == {"a": True, "b": {"const": 1}}
    found = weakened({"type": ["string", "number"], "const": "\ud800", "minimum": 10**400})
    assert found == {"type": ["string", "number"]}


def test_what_is_nested_too_deeply_goes_wholly():
    deep = "[" * 900 + "]" * 900
    found = weaken(Constraint(kind="json_schema", value=f'{{"const": {deep}}}'))
    assert json.loads(found.value) is True


@pytest.mark.parametrize(
    "value",
    [
        {"$ref": "other.json"},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
        {"properties": {"a": {"$ref": "#/nowhere"}, "b": NEVER}},
    ],
)
def test_references_that_lead_nowhere_are_refused(value):
    with pytest.raises(InvalidRequest, match="ref"):
        weaken(schema(value))


def test_what_is_no_schema_is_refused():
    with pytest.raises(InvalidRequest, match="not JSON"):
        weaken(Constraint(kind="json_schema", value="{"))
    with pytest.raises(InvalidRequest, match="NaN"):
        weaken(Constraint(kind="json_schema", value='{"const": NaN}'))
    with pytest.raises(InvalidRequest, match="regex"):
        weaken(Constraint(kind="regex", value="["))


INSTANCES = [
    None,
    True,
    0,
    1,
    7,
    2.5,
    "",
    "a",
    "abc",
    "{x}",
    [],
    [1],
    ["a"],
    ["a", "a"],
    [1, "a", None],
    {},
    {"a": 1},
    {"a": "x"},
    {"a": 1, "b": 2},
    {"b": "x", "c": []},
    {"zz": 1},
]
REFUSED = [
    {"uniqueItems": True, "items": {"type": ["string", "integer"]}, "type": "array"},
    {"type": "array", "prefixItems": [NEVER], "items": False, "uniqueItems": True},
    {"type": "array", "contains": NEVER, "maxContains": 1, "prefixItems": [{}]},
    {"type": "string", "not": {"pattern": "^(?<=b)x"}},
    {"if": {"properties": {"a": NEVER}}, "then": {"required": ["a"]}, "else": {"type": "string"}},
    {
        "oneOf": [
            {"type": "object", "properties": {"a": NEVER}},
            {"type": "object", "properties": {"b": NEVER}},
            {"type": "string"},
        ]
    },
    {"type": "object", "properties": {"a": NEVER}, "additionalProperties": False},
    {
        "type": "object",
        "patternProperties": {"(?<=a)b": {}, "a": {}},
        "additionalProperties": False,
    },
    {"anyOf": [NEVER, {"type": "array", "items": NEVER}, {"type": "integer"}]},
    {"allOf": [{"properties": {"a": NEVER}, "required": ["a"]}], "unevaluatedProperties": False},
    {"type": "array", "minContains": 0, "contains": NEVER, "prefixItems": [{}]},
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: json.dumps(value)[:60])
def test_nothing_that_was_allowed_is_lost(value):
    """By the validator's reading of the schema as sent and of the weaker one."""
    weaker = weakened(value)
    asked = jsonschema.Draft202012Validator(value)
    left = jsonschema.Draft202012Validator(weaker)
    for instance in INSTANCES:
        if asked.is_valid(instance):
            assert left.is_valid(instance), (instance, weaker)


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_random_schemas_allow_no_less_when_they_are_weaker(start):
    """Over every keyword, older spellings too; values that fit either schema."""
    weaker, checked = 0, 0
    for seed in range(start, start + 100):
        rng = random.Random(seed)
        value = SchemaMaker(rng).root()
        try:
            check(schema(value))
        except InvalidRequest:
            found = left_of(value)
            if found is None:
                continue
            weaker += 1
            checked += compared(modern(value), found, rng)
    assert weaker > 5
    assert checked > 20


def left_of(value):
    """The weaker schema; None where a reference leads nowhere."""
    try:
        found = weaken(schema(value))
    except InvalidRequest as error:
        if "$ref" in error.message:
            return None
        raise
    assert check(found) == found
    return json.loads(found.value) if found.value else {"type": ["object"]}


def compared(asked, left, rng):
    """How many values `asked` allows; each is allowed by `left`."""
    wanted, weaker = (jsonschema.Draft202012Validator(each) for each in (asked, left))
    makers = [ValueMaker(asked, rng), ValueMaker(left, rng)]
    count = 0
    for _ in range(10):
        maker = rng.choice(makers)
        instance = rng.choice([maker.value(maker.root), rng.choice(VALUES)])
        if wanted.is_valid(instance):
            count += 1
            assert weaker.is_valid(instance), (asked, left, instance)
    return count
