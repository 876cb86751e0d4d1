"""Texts to Python objects: each field is bound by its type while the model writes it.

python examples/cookbook/typed_records.py [model]
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated

import pydantic

import radixserve as rs


class Unit(Enum):
    PIECE = "piece"
    GRAM = "gram"
    LITRE = "litre"


class Line(pydantic.BaseModel):
    what: Annotated[str, pydantic.Field(min_length=1, max_length=20)]
    amount: Annotated[int, pydantic.Field(ge=1, le=1000)]
    unit: Unit


ORDERS = ["500 grams of flour please", "a litre of milk", "three lemons"]


@rs.function
def read_order(s, text):
    s += rs.system("Write the order as JSON with what, amount and unit (piece, gram or litre).")
    s += rs.user(text)
    s += rs.assistant(rs.gen("line", schema=Line, max_tokens=80, temperature=0))
    return s["line"]


def main(backend):
    states = read_order.run_batch([(text,) for text in ORDERS], backend=backend)
    lines = [state.ret_value for state in states]
    for text, line in zip(ORDERS, lines):
        print(f"{text!r}: {line.amount} {line.unit.value} of {line.what!r}")
    return lines


if __name__ == "__main__":
    with rs.Engine(*sys.argv[1:2]) as engine:
        main(engine)
