"""Fields that a document does not name, told from those that it does.

    python examples/extraction_confidence.py [--model smollm2] [--show]

Some letters to a shop say where the customer lives and which colour is wanted, some do not. The
schema asks for both every time, so the model makes up what it has not read. `field_logprobs` says
how sure it was: of a city by the log-probability of its tokens, of a colour by the probabilities of
all colours. The area under the ROC curve (AUC) is how often a field that was read is surer than one
that was made up: 1 is always, 0.5 is a coin.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from dataclasses import dataclass
from typing import Any

import radixserve as rs

COLOURS = ["red", "green", "blue", "white"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 24},
        "city": {"type": "string", "maxLength": 16},
        "colour": {"enum": COLOURS},
    },
    "required": ["customer", "city", "colour"],
    "additionalProperties": False,
}
EXAMPLES = [
    ("Ada Byrne of Cork wants 2 blue lanterns.", ("Ada Byrne", "Cork", "blue")),
    ("Emil Novak of Brno wants 12 red nails.", ("Emil Novak", "Brno", "red")),
    ("Ines Costa of Porto wants 3 white spoons.", ("Ines Costa", "Porto", "white")),
    ("Olga Brandt of Kiel wants 1 green rope.", ("Olga Brandt", "Kiel", "green")),
]
CUSTOMERS = [
    ("Rosa Diaz", "Madrid"), ("Tom Baker", "Leeds"), ("Mina Sato", "Osaka"),
    ("Jan Kowalski", "Gdansk"), ("Lena Weber", "Bremen"), ("Omar Haddad", "Tunis"),
]  # fmt: skip
GOODS = ["candles", "buckets", "kettles", "bricks", "towels", "ladders"]


@dataclass(frozen=True)
class Letter:
    text: str
    names_city: bool
    names_colour: bool


def letters() -> list[Letter]:
    """Each customer four times: with and without a city, with and without a colour."""
    found = []
    for i, (name, city) in enumerate(CUSTOMERS):
        for names_city, names_colour in itertools.product((True, False), repeat=2):
            place = f" of {city}" if names_city else ""
            colour = f" {COLOURS[i % len(COLOURS)]}" if names_colour else ""
            text = f"{name}{place} wants {i + 2}{colour} {GOODS[i]}."
            found.append(Letter(text, names_city, names_colour))
    return found


def prompt(letter: str) -> str:
    shown = [(text, json.dumps(dict(zip(SCHEMA["properties"], row)))) for text, row in EXAMPLES]
    blocks = [f"Letter: {text}\nOrder: {record}\n\n" for text, record in shown]
    return "".join(blocks) + f"Letter: {letter}\nOrder: "


def auc(sure: list[float], unsure: list[float]) -> float:
    """How often one of `sure` is larger than one of `unsure`; a tie is half."""
    pairs = [(a > b) + (a == b) / 2 for a in sure for b in unsure]
    return sum(pairs) / len(pairs)


def confidences(fields: dict[str, Any]) -> dict[str, float]:
    best = max(each["probability"] for each in fields["/colour"]["alternatives"])
    return {"city": math.exp(fields["/city"]["logprob"]), "colour": best}


def extract(model: str) -> list[tuple[Letter, dict[str, str], dict[str, float]]]:
    """(letter, record, confidence of its fields) of all letters."""
    given = letters()
    sampling = {"temperature": 0, "json_schema": SCHEMA, "max_new_tokens": 80}
    with rs.Engine(model) as engine:
        replies = engine.generate(
            [prompt(letter.text) for letter in given], {**sampling, "field_logprobs": True}
        )
    return [
        (letter, json.loads(reply["text"]), confidences(reply["meta_info"]["field_logprobs"]))
        for letter, reply in zip(given, replies)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--show", action="store_true", help="print every record")
    arguments = parser.parse_args()
    started = time.perf_counter()
    found = extract(arguments.model)
    seconds = time.perf_counter() - started
    if arguments.show:
        for letter, record, sure in found:
            told = ", ".join(f"{name} {record[name]} ({sure[name]:.3f})" for name in sure)
            print(f"{letter.text:<48}{told}")
    named = {
        "city": [letter.names_city for letter, _, _ in found],
        "colour": [letter.names_colour for letter, _, _ in found],
    }
    for field, are_named in named.items():
        values = [sure[field] for _, _, sure in found]
        area = auc(
            [value for value, is_named in zip(values, are_named) if is_named],
            [value for value, is_named in zip(values, are_named) if not is_named],
        )
        print(f"{field:<8}AUC {area:.3f}")
    print(f"{len(found)} letters in {seconds:.1f} s, the start of the engine included")


if __name__ == "__main__":
    main()
