"""What a schema says by the draft that it names: grammar/dialect.py. jsonschema's validators of
each draft have the last word."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

import jsonschema
import pytest

from radixserve.errors import InvalidRequest
from radixserve.grammar import check
from radixserve.grammar.offline import Grammar
from radixserve.wire.params import Constraint
from tests.grammar_bytes import schema_grammar
from tests.grammar_random import SchemaMaker

D4, D6, D7 = (f"http://json-schema.org/draft-0{n}/schema#" for n in (4, 6, 7))
D2019, D2020 = (f"https://json-schema.org/draft/{d}/schema" for d in ("2019-09", "2020-12"))
WHOLE = {"type": "integer"}
PAIR = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}
TEXTS = ["1", "2", "3", "5", "6", "8", "-4", "null", '"x"', '"abc"', "[]", "[1]", "[3, null]"]
TEXTS += ["[null]", "[6, 7]", "{}", '{"a": null}', '{"b": null}', '{"a": null, "b": null}', "2.5"]

# Each allows something to its draft's letter, and more if it is read as a newer one.
SCHEMAS: list[tuple[str, dict[str, Any]]] = [
    (D7, {"not": {"$ref": "#/definitions/w", "minimum": 5}}),
    (D6, {"oneOf": [{"$ref": "#/definitions/w", "minimum": 5}, {"type": "string"}]}),
    (D4, {"type": "integer", "oneOf": [{"const": 5}, {"minimum": 6}]}),
    (D4, {"type": "array", "items": WHOLE, "not": {"contains": WHOLE, "minItems": 1}}),
    (D6, {"type": "integer", "if": {"minimum": 3}, "then": {"maximum": 5}, "not": {"const": 1}}),
    (D7, {**PAIR, "not": {"dependentRequired": {"a": ["b"]}, "required": ["b"]}}),
    (
        D7,
        {"type": "array", "items": WHOLE, "not": {"prefixItems": [{"minimum": 5}], "minItems": 1}},
    ),
    (D2019, {"type": "array", "not": {"prefixItems": [{"minimum": 5}], "minItems": 1}}),
    (D7, {"type": "array", "not": {"contains": WHOLE, "minContains": 2}}),
    (D2020, {**PAIR, "not": {"dependencies": {"a": ["b"]}, "required": ["a"]}}),
    (D7, {**PAIR, "if": {"dependencies": {"a": ["b"]}}, "then": {"required": ["b"]}}),
    (D4, {"type": "integer", "not": {"minimum": 5, "exclusiveMinimum": True}}),
    (D4, {"type": "integer", "not": {"minimum": 3, "exclusiveMinimum": 6}}),
    (D2019, {"type": "array", "prefixItems": [{"type": "integer"}], "unevaluatedItems": False}),
    (D7, {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "null"}}),
]


@pytest.mark.parametrize(("draft", "schema"), SCHEMAS, ids=lambda x: str(x)[-60:])
def test_what_is_excluded_is_excluded_as_the_draft_has_it(
    draft: str, schema: dict[str, Any]
) -> None:
    whole = {"$schema": draft, "definitions": {"w": WHOLE}, **schema}
    validator = jsonschema.validators.validator_for(whole)(whole)
    accepted = [text for text in TEXTS if Grammar.accepts(whole, text)]
    assert accepted
    assert [text for text in accepted if not validator.is_valid(json.loads(text))] == []


def multiple_of(validator: Any, divisor: float, value: Any, schema: Any) -> Any:
    """Of the numbers as they are written."""
    if validator.is_type(value, "number") and Fraction(repr(value)) % Fraction(repr(divisor)):
        yield jsonschema.ValidationError("multipleOf")


def sweep(start: int, count: int) -> int:
    """Outputs of random schemas, under each draft; how many schemas were enforced."""
    enforced = 0
    for seed in range(start, start + count):
        rng = random.Random(seed)
        schema = {"$schema": rng.choice((D4, D6, D7, D2019, D2020)), **SchemaMaker(rng).root()}
        draft = jsonschema.validators.validator_for(schema)
        is_flag = '": true' in (text := json.dumps(schema)) and "exclusiveM" in text
        if "nullable" in text or is_flag or not draft(draft.META_SCHEMA).is_valid(schema):
            continue  # no schema of the draft
        try:
            grammar = schema_grammar(schema)
        except InvalidRequest:
            continue
        exact = jsonschema.validators.extend(draft, {"multipleOf": multiple_of})
        validator = exact(schema, format_checker=draft.FORMAT_CHECKER)
        for output in filter(None, (grammar.draw(rng, most=60) for _ in range(3))):
            assert validator.is_valid(json.loads(output)), f"{seed}: {output} under {text}"
        enforced += 1
    return enforced


def test_random_schemas_under_each_draft() -> None:
    assert sweep(0, 120) > 20


@pytest.mark.slow
def test_random_schemas_under_each_draft_for_long() -> None:
    assert sweep(1000, 4000) > 800


def test_nothing_is_left_out_where_nothing_is_excluded() -> None:
    """Enforcing what a draft does not know allows less, and is what was meant."""
    inner = {"$ref": "#/definitions/w", "minimum": 5}
    schema = {"$schema": D7, "definitions": {"w": WHOLE}, **inner}
    assert [text for text in TEXTS if Grammar.accepts(schema, text)] == ["5", "6", "8"]
    assert Grammar.accepts({"$schema": D4, "const": 5}, "5")
    assert not Grammar.accepts({"$schema": D4, "const": 5}, "6")


def test_a_whole_number_is_an_integer_to_draft_4_only_without_a_point() -> None:
    values = {"enum": [1.0, [2.0, 2.5], {"a": 3.0}]}
    found = [
        text for text in ("1", "1.0", "[2, 2.5]", "[2.0, 2.5]") if Grammar.accepts(values, text)
    ]
    assert found == ["1.0", "[2.0, 2.5]"]
    old = {"$schema": D4, **values}
    found = [text for text in ("1", "1.0", "[2, 2.5]", '{"a": 3}') if Grammar.accepts(old, text)]
    assert found == ["1", "[2, 2.5]", '{"a": 3}']


INSIDE = {"$id": "http://x/z.json", "$defs": {"q": WHOLE}, "$ref": "#/$defs/q"}


def test_a_reference_in_a_schema_with_an_identity_of_its_own_is_refused() -> None:
    """It is relative to that one; the same pointer may lead elsewhere in the whole."""
    schema = {"properties": {"a": INSIDE}, "$defs": {"q": {"type": "string"}}}
    with pytest.raises(InvalidRequest, match=r"\$ref at #/properties/a/\$ref"):
        check.check(Constraint(kind="json_schema", value=json.dumps(schema)))


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "http://x/y.json", "$defs": {"q": WHOLE}, "$ref": "#/$defs/q"},
        {"allOf": [{"$id": "http://x/y.json", **WHOLE}]},
        {"allOf": [{"id": "w", "$ref": "#/$defs/q"}], "$defs": {"q": WHOLE}},
        {"allOf": [{"$ref": "#w"}], "$defs": {"q": {"$id": "#w", **WHOLE}}},
    ],
)
def test_other_identities_change_nothing(schema: dict[str, Any]) -> None:
    assert Grammar.accepts(schema, "7")
    assert not Grammar.accepts(schema, '"x"')
