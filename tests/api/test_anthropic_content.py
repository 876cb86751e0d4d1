"""Content blocks: however the text of an output is cut, they are the same."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from radixserve.api.anthropic.content import Content
from radixserve.native.hearing import Hearing
from radixserve.text.reasoning import THINK, HeardParser, ReasoningParser
from radixserve.text.tool_calls import SYNTAXES
from tests.api.tool_talk import CALL, NOW_CALL

NAMES = {"get_weather", "now"}
PIECES = ["<think>", "why", "</think>", "\n", " ", "yes", "🦙", "<tool", "{", CALL, NOW_CALL, "}"]


def content() -> Content:
    calls = SYNTAXES["hermes"].parser(NAMES)
    heard = HeardParser(ReasoningParser(THINK, "either"), calls)
    ids = iter(range(1000))
    hearing = Hearing(heard, has_tools=True, has_thoughts=True)
    return Content(hearing, lambda: f"toolu_{next(ids)}")


def streamed(events: list[dict]) -> list[dict]:
    """The blocks that events add up to; each has an end before the next begins."""
    blocks: list[dict] = []
    is_open = False
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                is_open = True
                blocks.append(event["content_block"] | {"partial_json": ""})
            case "content_block_delta":
                assert is_open
                delta = dict(event["delta"])
                del delta["type"]
                [(key, text)] = delta.items()
                blocks[-1][key] += text
            case "content_block_stop":
                assert is_open
                is_open = False
        assert event["index"] == len(blocks) - 1
    assert not is_open
    for block in blocks:
        arguments = block.pop("partial_json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(arguments)
    return blocks


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=8), data=st.data())
def test_s08_every_split_gives_the_same_blocks(pieces, data):
    text = "".join(pieces)
    at_once = content()
    at_once.add(text, True)
    cuts = data.draw(st.sets(st.integers(0, len(text)), max_size=12))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *sorted(cuts), len(text)])]
    cut = content()
    events = []
    for i, piece in enumerate(pieces, 1):
        events += cut.add(piece, i == len(pieces))
    assert cut.blocks == at_once.blocks
    assert streamed(events) == at_once.blocks
    kinds = [block["type"] for block in cut.blocks]
    assert kinds.count("thinking") <= 1
    assert "thinking" not in kinds[1:]
    assert all(one != other for one, other in itertools.pairwise(kinds) if one != "tool_use")
