"""What a constraint does to the answers: fields read right, with and without its parts.

    python -m benchmarks.accuracy [--quick] [--json FILE] [--model smollm2]

Synthetic documents that name a person, a city, a year and a kind, behind three solved examples;
greedy. Sides: free (no constraint), fixed (the default), bounded (whitespace: "bounded"), sampled
(fixed, without forced tokens). Columns: outputs that validate, fields that are right, output
tokens, and how many of them were forced.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
from typing import Any

import jsonschema

from benchmarks.schemas import one_of, record, text, whole
from radixserve import Engine

NAMES = ("Maria Lopez", "Tom Baker", "Ada Byron", "Ken Ito", "Lena Vogel", "Omar Haddad")
CITIES = ("Lisbon", "Leeds", "Kyoto", "Bremen", "Cairo", "Quito", "Oslo", "Dublin")
KINDS = {"wrote a letter": "letter", "went on a journey": "journey", "bought a house": "purchase"}
SCHEMA = record(
    name=text(maxLength=30),
    city=text(maxLength=30),
    year=whole(minimum=1900, maximum=2030),
    kind=one_of(*KINDS.values()),
)
BATCH = 32


def document(rng: random.Random) -> tuple[str, dict[str, Any]]:
    name, city, year = rng.choice(NAMES), rng.choice(CITIES), rng.randrange(1900, 2031)
    what, kind = rng.choice(list(KINDS.items()))
    shapes = (
        f"In {year}, {name} of {city} {what}.",
        f"{name}, who lives in {city}, {what} in {year}.",
        f"From {city} comes the news that {name} {what}; it was {year}.",
    )
    return rng.choice(shapes), {"name": name, "city": city, "year": year, "kind": kind}


def prompts(count: int, seed: int) -> list[tuple[str, dict[str, Any]]]:
    rng = random.Random(seed)
    shown = [document(rng) for _ in range(3)]
    head = "".join(f"Text: {words}\nJSON: {json.dumps(fields)}\n\n" for words, fields in shown)
    found = [document(rng) for _ in range(count)]
    return [(f"{head}Text: {words}\nJSON:", fields) for words, fields in found]


def judged(reply: str, fields: dict[str, Any]) -> tuple[bool, int]:
    """Whether the reply validates, and how many of its fields are right."""
    try:
        value = json.loads(reply)
    except ValueError:
        return False, 0
    if not isinstance(value, dict):
        return False, 0
    right = sum(value.get(name) == wanted for name, wanted in fields.items())
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(value), right


def ask(engine: Engine, jobs: list[tuple[str, dict[str, Any]]], **more: Any) -> dict[str, float]:
    valid = right = tokens = forced = 0
    params = {"max_new_tokens": 64, "temperature": 0, **more}
    for start in range(0, len(jobs), BATCH):
        some = jobs[start : start + BATCH]
        replies = engine.generate([prompt for prompt, _ in some], params)
        for (_, fields), reply in zip(some, replies):
            fits, count = judged(reply["text"], fields)
            valid += fits
            right += count
            tokens += len(reply["output_ids"])
            forced += reply["meta_info"].get("forced_tokens", 0)
    n = len(jobs)
    return {
        "valid": valid / n,
        "right": right / (n * len(SCHEMA["properties"])),
        "tokens": tokens / n,
        "forced": forced / max(1, tokens),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--documents", type=int, default=0, help="0: 200, or 16 with --quick")
    parser.add_argument("--quick", action="store_true", help="few documents, under a minute")
    parser.add_argument("--json", type=pathlib.Path, help="write name: value pairs here")
    arguments = parser.parse_args()
    jobs = prompts(arguments.documents or (16 if arguments.quick else 200), 1)
    sides: dict[str, dict[str, float]] = {}
    with Engine(arguments.model, kv_tokens=32768) as engine:
        sides["free"] = ask(engine, jobs, stop=["\n\n"])
        sides["fixed"] = ask(engine, jobs, json_schema=SCHEMA)
        sides["bounded"] = ask(engine, jobs, json_schema=SCHEMA, whitespace="bounded")
    with Engine(arguments.model, kv_tokens=32768, forced_tokens=False) as engine:
        sides["sampled"] = ask(engine, jobs, json_schema=SCHEMA)
    print(f"{len(jobs)} documents")
    print(f"{'side':<10}{'valid':>8}{'right':>8}{'tokens':>8}{'forced':>8}")
    for name, side in sides.items():
        shares = f"{side['valid']:>8.1%}{side['right']:>8.1%}"
        print(f"{name:<10}{shares}{side['tokens']:>8.1f}{side['forced']:>8.0%}")
    if arguments.json:
        figures = {f"{a}.{b}": round(v, 4) for a, side in sides.items() for b, v in side.items()}
        arguments.json.write_text(json.dumps({"documents": len(jobs), **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
