"""Schemas as pydantic, zod, OpenAPI and MCP clients send them."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import random
import uuid
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.grammar_bytes import schema_grammar


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["dog"]
    name: Annotated[str, Field(min_length=1, max_length=12, pattern="^[A-Z]")]


class Tree(BaseModel):
    label: str
    children: list[Tree] = []


class Everything(BaseModel):
    colour: Colour
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    price: decimal.Decimal
    when: datetime.datetime | None = None
    day: datetime.date
    id: uuid.UUID
    pair: tuple[int, str]
    tags: Annotated[list[str], Field(max_length=3)]
    flags: set[Colour]
    scores: dict[str, float]
    tree: Tree
    ratio: Annotated[float, Field(gt=0, lt=1)]
    anything: Any = None


ZOD = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 40},
        "role": {"type": "string", "enum": ["admin", "user"]},
        "age": {"type": "integer", "exclusiveMinimum": 0, "maximum": 150},
        "pair": {
            "type": "array",
            "minItems": 2,
            "maxItems": 2,
            "items": [{"type": "string"}, {"type": "number"}],
        },
        "extra": {"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]},
    },
    "required": ["name", "role", "age", "pair"],
    "additionalProperties": False,
}
OPENAPI = {
    "components": {
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["petType"],
                "properties": {"petType": {"type": "string"}},
                "discriminator": {"propertyName": "petType"},
            },
            "Bird": {
                "allOf": [
                    {"$ref": "#/components/schemas/Pet"},
                    {
                        "type": "object",
                        "properties": {
                            "petType": {"enum": ["bird"]},
                            "wings": {"type": "integer", "format": "int32", "minimum": 0},
                        },
                        "required": ["wings"],
                    },
                ]
            },
        }
    },
    "$ref": "#/components/schemas/Bird",
}
MCP = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "where"},
        "edits": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"old": {"type": "string"}, "new": {"type": "string"}},
                "required": ["old", "new"],
                "additionalProperties": False,
            },
        },
        "dryRun": {"type": "boolean", "default": False},
    },
    "required": ["path", "edits"],
    "additionalProperties": False,
    "$schema": "http://json-schema.org/draft-07/schema#",
}


@pytest.mark.parametrize(
    "schema",
    [model.model_json_schema() for model in (Cat, Dog, Tree, Everything)] + [ZOD, OPENAPI, MCP],
    ids=["cat", "dog", "tree", "everything", "zod", "openapi", "mcp"],
)
def test_drawn_texts_validate(schema):
    grammar = schema_grammar(schema)
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    valid = kind(schema, format_checker=kind.FORMAT_CHECKER)
    rng = random.Random(3)
    drawn = [text for _ in range(40) if (text := grammar.draw(rng, 900)) is not None]
    assert len(drawn) >= 5
    for text in drawn:
        valid.validate(json.loads(text))


def test_a_model_round_trips():
    value = Everything(
        colour=Colour.BLUE,
        pet=Dog(kind="dog", name="Rex"),
        price=decimal.Decimal("12.50"),
        when=datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC),
        day=datetime.date(2024, 2, 29),
        id=uuid.UUID(int=2**100),
        pair=(1, "x"),
        tags=["a", "é"],
        flags={Colour.RED},
        scores={"a": 0.5, "b c": 2},
        tree=Tree(label="root", children=[Tree(label="leaf")]),
        ratio=0.25,
        anything=[None, {"k": 1}],
    )
    text = json.dumps(value.model_dump(mode="json"), ensure_ascii=False)
    grammar = schema_grammar(Everything.model_json_schema())
    assert grammar.accepts(text)
    assert not grammar.accepts(text.replace("Rex", "rex"))
    assert not grammar.accepts(text.replace("0.25", "1.25"))
    assert not grammar.accepts(text.replace('"dog"', '"cat"'))
