"""Structural tags on a real engine with a random model: every reply is one, cut short or not."""

from __future__ import annotations

from collections import Counter

import radixserve as rs
from tests.tag_formats import FORMATS, whole

FORMS = [whole(form) for form, _, _ in FORMATS.values()] * 3


def test_replies_of_every_format(engine) -> None:
    params = [
        {
            "structural_tag": form,
            "max_new_tokens": 40,
            "temperature": 1.5,
            "sampling_seed": seed,
        }
        for seed, form in enumerate(FORMS)
    ]
    replies = engine.generate(["the quick brown fox"] * len(FORMS), params)
    ends: Counter[str] = Counter()
    for form, reply in zip(FORMS, replies, strict=True):
        assert rs.Grammar.accepts(structural_tag=form, text=reply["text"]), (form, reply["text"])
        ends[reply["meta_info"]["finish_reason"]["type"]] += 1
    assert min(ends["stop"], ends["length"]) > 10
