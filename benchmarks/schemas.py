"""Thirty schemas as extraction pipelines and agents send them.

Owns: SCHEMAS by name, each with a line that says what a document for it is about. Must not know:
who measures with them.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def record(optional: tuple[str, ...] = (), **members: Schema) -> Schema:
    """A closed object whose members are required but for the `optional` ones."""
    return {
        "type": "object",
        "properties": members,
        "required": [name for name in members if name not in optional],
        "additionalProperties": False,
    }


def text(**bounds: Any) -> Schema:
    return {"type": "string", **bounds}


def whole(**bounds: Any) -> Schema:
    return {"type": "integer", **bounds}


def number(**bounds: Any) -> Schema:
    return {"type": "number", **bounds}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def many(item: Schema, **bounds: Any) -> Schema:
    return {"type": "array", "items": item, **bounds}


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


FLAG: Schema = {"type": "boolean"}
DATE = text(format="date")
MONEY = record(amount=number(minimum=0), currency=one_of("EUR", "USD", "GBP", "JPY"))
ADDRESS = record(
    ("street",), street=text(maxLength=40), city=text(maxLength=30), zip=text(pattern="^[0-9]{5}$")
)
TREE: Schema = {
    "$defs": {
        "Node": record(
            ("children",),
            name=text(maxLength=20),
            children=many({"$ref": "#/$defs/Node"}, maxItems=3),
        )
    },
    "$ref": "#/$defs/Node",
}
SHAPE: Schema = {
    "oneOf": [
        record(kind={"const": "circle"}, radius=number(exclusiveMinimum=0)),
        record(kind={"const": "rectangle"}, width=number(), height=number()),
    ]
}
PAYMENT: Schema = {
    "type": "object",
    "properties": {
        "method": one_of("card", "transfer"),
        "card_number": text(pattern="^[0-9]{16}$"),
        "iban": text(pattern="^[A-Z]{2}[0-9]{10,20}$"),
    },
    "required": ["method"],
    "additionalProperties": False,
    "anyOf": [{"required": ["card_number"]}, {"required": ["iban"]}],
}

SCHEMAS: dict[str, tuple[str, Schema]] = {
    "person": (
        "a person",
        record(name=text(maxLength=40), age=whole(minimum=0, maximum=120),
               email=text(maxLength=30)),
    ),
    "contact": (
        "a contact",
        record(("phone",), name=text(maxLength=40), phone=text(pattern=r"^\+?[0-9]{6,12}$"),
               address=ADDRESS),
    ),
    "sentiment": (
        "a review",
        record(sentiment=one_of("positive", "negative", "neutral"), confidence=number(minimum=0,
               maximum=1)),
    ),
    "ticket": (
        "a support ticket",
        record(title=text(maxLength=60), priority=one_of("low", "medium", "high", "urgent"),
               category=one_of("billing", "technical", "account", "other"), needs_reply=FLAG),
    ),
    "invoice": (
        "an invoice",
        record(number=text(pattern="^INV-[0-9]{4,8}$"), date=DATE, total=MONEY,
               lines=many(record(item=text(maxLength=30), quantity=whole(minimum=1),
                                 price=number(minimum=0)), minItems=1, maxItems=4)),
    ),
    "receipt": ("a receipt", record(shop=text(maxLength=30), paid=MONEY, items=many(
        text(maxLength=20), maxItems=6))),
    "event": (
        "an event",
        record(("end",), name=text(maxLength=40), start=text(format="date-time"),
               end=text(format="date-time"), place=maybe(text(maxLength=30))),
    ),
    "flight": (
        "a flight",
        record(code=text(pattern="^[A-Z]{2}[0-9]{2,4}$"), origin=text(pattern="^[A-Z]{3}$"),
               destination=text(pattern="^[A-Z]{3}$"), seats=whole(minimum=0, maximum=600)),
    ),
    "weather": (
        "the weather",
        record(temperature=number(minimum=-80, maximum=60), unit=one_of("C", "F"),
               condition=one_of("sunny", "cloudy", "rain", "snow"), windy=FLAG),
    ),
    "recipe": (
        "a recipe",
        record(title=text(maxLength=40), servings=whole(minimum=1, maximum=12),
               ingredients=many(record(name=text(maxLength=20), grams=whole(minimum=1)),
                                minItems=1, maxItems=5), vegan=FLAG),
    ),
    "product": (
        "a product",
        record(sku=text(pattern="^[A-Z0-9]{6}$"), name=text(maxLength=40), price=MONEY,
               tags=many(text(maxLength=12), maxItems=4), in_stock=FLAG),
    ),
    "order": (
        "an order",
        record(id=whole(minimum=1), status=one_of("new", "paid", "shipped", "returned"),
               customer=record(name=text(maxLength=30), vip=FLAG), address=ADDRESS),
    ),
    "payment": ("a payment", PAYMENT),
    "shape": ("a drawing of a circle or a rectangle", SHAPE),
    "tree": ("a family tree", TREE),
    "movie": (
        "a film",
        record(title=text(maxLength=40), year=whole(minimum=1888, maximum=2030),
               genres=many(one_of("drama", "comedy", "action", "horror"), minItems=1, maxItems=3),
               rating=maybe(number(minimum=0, maximum=10))),
    ),
    "book": (
        "a book",
        record(title=text(maxLength=40), authors=many(text(maxLength=25), minItems=1, maxItems=3),
               isbn=text(pattern="^97[89]-[0-9]{10}$"), language=one_of("en", "de", "fr", "es")),
    ),
    "job": (
        "a job advert",
        record(title=text(maxLength=40), remote=FLAG, salary=maybe(record(low=whole(minimum=0),
               high=whole(minimum=0))), skills=many(text(maxLength=15), maxItems=5)),
    ),
    "medical": (
        "a medical note",
        record(patient=text(maxLength=30), complaint=text(maxLength=60), since_days=whole(minimum=0,
               maximum=3650), fever=FLAG, medication=many(text(maxLength=20), maxItems=3)),
    ),
    "measurement": (
        "a measurement",
        record(sensor=text(pattern="^s-[0-9a-f]{4}$"), value=number(), step=number(multipleOf=0.5),
               unit=one_of("mm", "kg", "s")),
    ),
    "triple": (
        "a sentence",
        many(record(subject=text(maxLength=20), predicate=text(maxLength=20),
                    object=text(maxLength=20)), minItems=1, maxItems=3),
    ),
    "entities": (
        "a news item",
        record(entities=many(record(text=text(maxLength=25), type=one_of(
            "person", "place", "organisation", "date")), maxItems=5)),
    ),
    "classification": ("a message", one_of("spam", "newsletter", "personal", "work")),
    "score": ("an essay", record(score=whole(minimum=1, maximum=10), reason=text(maxLength=80))),
    "yes_no": ("a question", record(answer=FLAG, evidence=maybe(text(maxLength=60)))),
    "tool_call": (
        "a request to an assistant",
        {"anyOf": [
            record(tool={"const": "search"}, query=text(maxLength=40), limit=whole(minimum=1,
                   maximum=20)),
            record(tool={"const": "send_mail"}, to=text(maxLength=30), subject=text(maxLength=40)),
            record(tool={"const": "none"}),
        ]},
    ),
    "route": (
        "a journey",
        record(stops=many(record(station=text(maxLength=20), minutes=whole(minimum=0, maximum=600)),
                          minItems=2, maxItems=4)),
    ),
    "point": (
        "a place on a map",
        {"type": "array", "prefixItems": [number(minimum=-90, maximum=90),
                                          number(minimum=-180, maximum=180)],
         "items": False, "minItems": 2},
    ),
    "settings": (
        "the settings of a program",
        record(("proxy",), theme=one_of("light", "dark"), font_size=whole(minimum=8, maximum=32,
               multipleOf=2), proxy=maybe(text(maxLength=30)), plugins={
                   "type": "object", "additionalProperties": FLAG}),
    ),
    "company": (
        "a company",
        record(name=text(maxLength=40), founded=maybe(whole(minimum=1600, maximum=2030)),
               employees=maybe(whole(minimum=0)), headquarters=ADDRESS,
               competitors=many(text(maxLength=25), maxItems=3)),
    ),
}  # fmt: skip
