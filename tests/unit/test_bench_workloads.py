"""The shapes of W0 to W8 and what they share."""

from __future__ import annotations

import itertools
import zlib

import pytest

from benchmarks.serving.prose import Prose
from benchmarks.serving.workloads import WORKLOADS, Call, sharable


def words(text: str) -> list[int]:
    """A token for each word, about as long as those of a tokenizer."""
    return [zlib.crc32(word.encode()) for word in text.split()]


def build(name: str, seed: str = "s", is_quick: bool = False) -> list[Call]:
    return WORKLOADS[name].build(Prose(words, seed), is_quick)


def total(calls: list[Call]) -> int:
    return sum(len(call.prompt) for call in calls)


def computed_at_least(calls: list[Call]) -> int:
    """Distinct prefixes, the longest way: every prefix of every prompt in one set."""
    seen = {call.prompt[:n] for call in calls for n in range(1, len(call.prompt) + 1)}
    return len(seen)


def test_prose_is_the_same_for_the_same_seed_and_exactly_long():
    for n in (1, 2, 31, 512):
        assert len(Prose(words, "s").tokens(n)) == n
    assert Prose(words, "s").tokens(300) == Prose(words, "s").tokens(300)
    assert Prose(words, "s").tokens(300) != Prose(words, "t").tokens(300)
    prose = Prose(words, "s")
    assert prose.tokens(300) != prose.tokens(300)


@pytest.mark.parametrize(
    ("name", "calls", "tokens", "out"),
    [
        ("W0", 1, 64, 128),
        ("W1", 64, 64 * 544, 64 * 32),
        ("W2", 64, 64 * 816, 64),
        ("W3", 32, 8 * (96 + 224 + 352 + 480), 32 * 32),
        ("W4", 160, 32 * 136 + 128 * 168, 160 * 24),
        ("W5", 48, 8 * sum(748 + 80 * step for step in range(6)), 48 * 32),
        ("W7", 32, 32 * 512, 32 * 64),
        ("W8", 64, 64 * 544, 64 * 32),
    ],
)
def test_the_size_of_each_workload(name: str, calls: int, tokens: int, out: int):
    built = build(name)
    assert len(built) == calls
    assert total(built) == tokens
    assert sum(call.tokens for call in built) == out


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_fixes_a_workload(name: str):
    assert build(name) == build(name)
    assert not {call.prompt for call in build(name)} & {call.prompt for call in build(name, "t")}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_quick_workload_is_a_smaller_one(name: str):
    quick = build(name, is_quick=True)
    assert sum(call.tokens for call in quick) < sum(call.tokens for call in build(name))
    assert max(len(call.prompt) for call in quick) <= max(len(call.prompt) for call in build(name))


@pytest.mark.parametrize("name", ["W3", "W4", "W5"])
def test_a_call_goes_on_from_the_text_of_the_one_it_waits_for(name: str):
    calls = build(name)
    waiting = [(call, calls[call.after[0]]) for call in calls if call.after]
    assert waiting
    for call, before in waiting:
        assert call.prompt[: len(before.prompt)] == before.prompt
        assert len(call.prompt) > len(before.prompt) + before.tokens


def test_an_agent_goes_on_when_both_answers_have_come():
    calls = build("W5")
    assert all(len(call.after) in (0, 2) for call in calls)
    first, second = (calls[i] for i in calls[8].after)
    assert first.after == second.after == ()
    assert first.prompt[:700] == second.prompt[:700]
    assert first.prompt != second.prompt


@pytest.mark.parametrize("name", ["W0", "W1", "W3", "W4", "W5", "W7"])
def test_sharable_tokens_are_those_of_common_prefixes(name: str):
    calls = build(name, is_quick=True)
    assert sharable(calls) == total(calls) - computed_at_least(calls)


def test_of_equal_prompts_one_token_each_is_computed():
    assert sharable([Call((1, 2, 3), 1)] * 3) == 4


def test_the_groups_of_w1_are_shuffled():
    systems = [call.prompt[:512] for call in build("W1")]
    assert len(set(systems)) == 8
    assert len(list(itertools.groupby(systems))) > 30
