"""Patterns that end an output, on a real engine."""

from __future__ import annotations

import re
from collections.abc import Callable

from radixserve.engine import Engine
from tests.e2e.test_engine import prompt_of


def test_an_output_ends_where_its_text_first_matches(start: Callable[..., Engine]) -> None:
    params = {"max_new_tokens": 60, "temperature": 1.0, "sampling_seed": 5, "ignore_eos": True}
    with start() as engine:
        for seed in range(3):
            ids = prompt_of(20, seed)
            free = engine.generate(input_ids=ids, sampling_params=params)
            pieces = [
                chunk["text"] for chunk in engine.stream(input_ids=ids, sampling_params=params)
            ]
            for pattern in (r"[aeiou]{2}", r"\d", r"[^ -~]+[a-z]", "zzzzzzzz"):
                asked = params | {"stop_regex": ["qqqqq", pattern]}
                reply = engine.generate(input_ids=ids, sampling_params=asked)
                text, reason = reply["text"], reply["meta_info"]["finish_reason"]
                if re.search(pattern, free["text"]) is None:
                    assert (text, reason["type"]) == (free["text"], "length")
                    continue
                assert reason == {"type": "stop", "matched": pattern}
                assert re.search(pattern, text)
                assert free["text"].startswith(text)
                assert reply["output_ids"] == free["output_ids"][: len(reply["output_ids"])]
                before = [piece for piece in pieces if len(piece) < len(text)]
                assert not before or not re.search(pattern, before[-1].rstrip("\ufffd"))
