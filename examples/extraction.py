"""Typed records out of documents, on a small model.

    python examples/extraction.py [--model smollm2] [--json]

Letters to a shop are read into pydantic objects. The shape is enforced while the model writes, so
every reply parses and validates; what stands in the fields is as good as the model is. All letters
share the instructions and the examples in front of them, which are computed once.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Annotated

import pydantic

import radixserve as rs

Name = Annotated[str, pydantic.Field(min_length=1, max_length=24)]


class Item(pydantic.BaseModel):
    quantity: Annotated[int, pydantic.Field(ge=1, le=99)]
    name: Name


class Order(pydantic.BaseModel):
    customer: Name
    city: Name
    items: Annotated[list[Item], pydantic.Field(min_length=1, max_length=3)]


def order(customer: str, city: str, **items: int) -> Order:
    listed = [Item(quantity=count, name=name) for name, count in items.items()]
    return Order(customer=customer, city=city, items=listed)


EXAMPLES = {
    "Ada Byrne of Cork wants 2 lanterns and 1 rope.": order(
        "Ada Byrne", "Cork", lanterns=2, rope=1
    ),
    "Emil Novak of Brno wants 12 nails.": order("Emil Novak", "Brno", nails=12),
    "Ines Costa of Porto wants 3 spoons, 3 forks and 1 pan.": order(
        "Ines Costa", "Porto", spoons=3, forks=3, pan=1
    ),
}

LETTERS = [
    "Rosa Diaz of Madrid wants 3 candles and 2 mirrors.",
    "Tom Baker of Leeds wants 5 buckets.",
    "Mina Sato of Osaka wants 1 kettle, 4 cups and 4 plates.",
    "Jan Kowalski of Gdansk needs 10 bricks.",
    "Lena Weber of Bremen wants 6 towels, please.",
    "Omar Haddad of Tunis needs 2 ladders and 1 hammer.",
]


@rs.function
def read_letter(s, letter):
    s += rs.system("You read letters to a shop and write down the order as JSON.")
    for text, read in EXAMPLES.items():
        s += rs.user(text)
        s += rs.assistant(json.dumps(read.model_dump()))  # spelled as outputs are
    s += rs.user(letter)
    s += rs.assistant(rs.gen("order", schema=Order, max_tokens=160, temperature=0))


def extract(model: str) -> tuple[list[Order], str]:
    """The orders of all letters, and what they cost."""
    with rs.Engine(model) as engine:
        started = time.perf_counter()
        states = read_letter.run_batch([{"letter": text} for text in LETTERS], backend=engine)
        orders = [state["order"] for state in states]
        seconds = time.perf_counter() - started
        gauges = engine.gauges()
    reused = gauges.prompt_tokens - gauges.computed_tokens
    cost = (
        f"{len(orders)} records in {seconds:.1f} s; {reused:,} of {gauges.prompt_tokens:,} prompt "
        f"tokens reused, {gauges.forced_tokens:,} of {gauges.generated_tokens:,} output tokens "
        f"forced by the schema"
    )
    return orders, cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--json", action="store_true", help="print the records as JSON lines")
    arguments = parser.parse_args()
    orders, cost = extract(arguments.model)
    for found in orders:
        if arguments.json:
            print(found.model_dump_json())
            continue
        items = ", ".join(f"{item.quantity} {item.name}" for item in found.items)
        print(f"{found.customer:<24}{found.city:<16}{items}")
    if not arguments.json:
        print(f"\n{cost}")


if __name__ == "__main__":
    main()
