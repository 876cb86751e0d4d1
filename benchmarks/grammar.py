"""What constraints cost: compiling, masks, and decoding beside unconstrained output in one run.

    python -m benchmarks.grammar [--quick] [--rounds N] [--json FILE] [--model smollm2]

Three tables. Schemas (benchmarks/schemas.py): seconds until the first matcher (cold) and
microseconds when it is kept, microseconds for a mask row and for taking a token along outputs that
the model has made, the share of forced tokens, and how many times fewer steps the output took than
it has tokens. Decoding: seconds a token, constrained over unconstrained, on a constraint that
forces nothing and never ends (the bare cost of masks), the same number of tokens on both sides.
Extraction: output tokens a second with the schemas over without, the same number of tokens for each
request. Sides alternate; ratios are of medians.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.schemas import SCHEMAS
from radixserve import Engine
from radixserve.config.schema import GrammarConfig
from radixserve.grammar.check import check
from radixserve.grammar.gate import Gate
from radixserve.grammar.pool import Matcher
from radixserve.text.tokenizer import Tokenizer
from radixserve.weights import source
from radixserve.wire.messages import Generate, Setup
from radixserve.wire.params import Constraint, SamplingParams

Reply = dict[str, Any]
PROSE = "[a-zA-Z ,.;:!?\\n]*"  # need not end, forces nothing
PROMPT = "Read the text and answer in JSON. The text is about {}: {}\nJSON:\n"
BODY = (
    "It was late in the year when Maria Lopez, 42, wrote from 12 Elm Street, Springfield 12345. "
    "She paid 19.90 EUR on 2024-03-05 and was happy with it, on the whole."
)


def prompt_of(about: str) -> str:
    return PROMPT.format(about, BODY)


class Compiling:
    """A gate as the engine has it, without the engine."""

    def __init__(self, tokenizer: Tokenizer, columns: int, threads: int) -> None:
        setup = Setup(
            config=b"",
            token_bytes=list(tokenizer.token_bytes),
            stop_ids=sorted(tokenizer.eos_ids),
            tokenizer=tokenizer.to_engine(),
        )
        self._gate = Gate(GrammarConfig(compile_seconds=120.0), setup, columns, threads)
        self._count = 0
        self.matcher(check(Constraint(kind="regex", value="warm")))

    def matcher(self, constraint: Constraint) -> tuple[Matcher, float]:
        """A matcher, and the seconds that it took to get it."""
        self._count += 1
        began = time.perf_counter()
        self._gate.hold(
            Generate(
                rid=str(self._count), prompt=b"", params=SamplingParams(), constraint=constraint
            )
        )
        while not (found := self._gate.ready()):
            time.sleep(0.0002)
        guide = found[0][1]
        assert isinstance(guide, Matcher), guide
        return guide, time.perf_counter() - began

    def along(self, constraint: Constraint, ids: list[int]) -> tuple[float, float]:
        """Seconds a mask row and seconds a token took, along an output of the model."""
        matcher, _ = self.matcher(constraint)
        row = np.zeros(matcher.row_words, np.int32)
        matcher.begin(len(ids), one_by_one=True)
        masks, takes = [], []
        for place, token in enumerate(ids):
            began = time.perf_counter()
            matcher.fill(row)
            masks.append(time.perf_counter() - began)
            began = time.perf_counter()
            matcher.take(token, len(ids) - place - 1)
            takes.append(time.perf_counter() - began)
        return statistics.mean(masks or [0.0]), statistics.mean(takes or [0.0])

    def close(self) -> None:
        self._gate.close()


def sampling(tokens: int, **more: Any) -> dict[str, Any]:
    return {"max_new_tokens": tokens, "temperature": 0.8, "sampling_seed": 1, **more}


def schema_table(engine: Engine, tools: Compiling, names: list[str], tokens: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    print(f"{'schema':<16}{'cold s':>8}{'kept us':>9}{'mask us':>9}{'take us':>9}", end="")
    print(f"{'tokens':>8}{'forced':>8}{'steps':>8}")
    for name in names:
        about, schema = SCHEMAS[name]
        constraint = check(Constraint(kind="json_schema", value=json.dumps(schema)))
        _, cold = tools.matcher(constraint)
        _, kept = tools.matcher(constraint)
        reply = engine.generate(prompt_of(about), sampling(tokens, json_schema=schema))
        ids, meta = reply["output_ids"], reply["meta_info"]
        mask, take = tools.along(constraint, ids)
        share = meta["forced_tokens"] / max(1, len(ids))
        fewer = len(ids) / max(1, len(ids) - meta["forced_tokens"])
        print(
            f"{name:<16}{cold:>8.3f}{kept * 1e6:>9.0f}{mask * 1e6:>9.1f}{take * 1e6:>9.1f}"
            f"{len(ids):>8}{share:>8.0%}{fewer:>7.2f}x",
            flush=True,
        )
        found = {"cold_s": cold, "kept_us": kept * 1e6, "mask_us": mask * 1e6, "fewer_steps": fewer}
        figures |= {f"schema.{name}.{key}": round(value, 4) for key, value in found.items()}
        figures.setdefault("all", []).append((cold, mask, take, len(ids), meta["forced_tokens"]))
    rows = figures.pop("all")
    total, forced = sum(row[3] for row in rows), sum(row[4] for row in rows)
    figures["schemas.cold_s.median"] = round(statistics.median(row[0] for row in rows), 4)
    figures["schemas.mask_us.median"] = round(statistics.median(row[1] for row in rows) * 1e6, 1)
    figures["schemas.fewer_steps"] = round(total / (total - forced), 3)
    print(f"all: {forced} of {total} tokens forced, {total / (total - forced):.2f}x fewer steps\n")
    return figures


def timed(work: Callable[[], list[Reply]]) -> tuple[float, int]:
    began = time.perf_counter()
    replies = work()
    seconds = time.perf_counter() - began
    return seconds, sum(len(reply["output_ids"]) for reply in replies)


def decoding(engine: Engine, batch: int, tokens: int, rounds: int) -> float:
    """Seconds a token under a mask, over those without."""
    prompts = [prompt_of(about) + str(i) for i, about in enumerate(["a letter"] * batch)]
    sides: dict[str, dict[str, Any]] = {"free": {}, "masked": {"regex": PROSE}}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, more in sides.items():
            params = sampling(tokens, ignore_eos=True, **more)
            took, made = timed(lambda params=params: engine.generate(prompts, params))
            assert made == batch * tokens
            if number:  # the first round fills the cache and compiles
                seconds[name].append(took)
    return statistics.median(seconds["masked"]) / statistics.median(seconds["free"])


def extraction(engine: Engine, names: list[str], batch: int, rounds: int) -> float:
    """Output tokens a second with the schemas, over without."""
    chosen = [SCHEMAS[names[i % len(names)]] for i in range(batch)]
    prompts = [prompt_of(about) for about, _ in chosen]
    constrained = [sampling(128, json_schema=schema) for _, schema in chosen]
    rates: dict[str, list[float]] = {"constrained": [], "free": []}
    for number in range(rounds + 1):
        began = time.perf_counter()
        replies = engine.generate(prompts, constrained)
        seconds = time.perf_counter() - began
        lengths = [max(1, len(reply["output_ids"])) for reply in replies]
        free = [sampling(n, ignore_eos=True) for n in lengths]
        took, made = timed(lambda free=free: engine.generate(prompts, free))
        if number:
            rates["constrained"].append(sum(lengths) / seconds)
            rates["free"].append(made / took)
    return statistics.median(rates["constrained"]) / statistics.median(rates["free"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=0, help="0: 5, or 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="fewer schemas, under a minute")
    parser.add_argument("--json", type=pathlib.Path, help="write name: value pairs here")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    names = list(SCHEMAS)[:6] if arguments.quick else list(SCHEMAS)
    batches = (1, 8) if arguments.quick else (1, 8, 32)
    tokens = 24 if arguments.quick else 64
    tokenizer = Tokenizer.load(source.resolve(arguments.model))
    figures: dict[str, Any] = {"rounds": rounds}
    with Engine(arguments.model, kv_tokens=65536) as engine:
        columns = tokenizer.vocab_size
        tools = Compiling(tokenizer, columns, threads=1)
        try:
            figures |= schema_table(engine, tools, names, 128)
        finally:
            tools.close()
        print(f"{'at once':<10}{'masked / free, time a token':>30}{'schemas / free, tokens/s':>28}")
        for batch in batches:
            cost = decoding(engine, batch, tokens, rounds)
            gain = extraction(engine, names, batch, rounds)
            print(f"{batch:<10}{cost:>29.3f}x{gain:>27.2f}x", flush=True)
            figures[f"decoding.{batch}.masked_over_free"] = round(cost, 4)
            figures[f"extraction.{batch}.constrained_over_free"] = round(gain, 3)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
