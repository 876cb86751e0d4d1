"""Reasoning before a bound answer: random draws under the masks always end in one."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import xgrammar
from hypothesis import event, given, settings
from hypothesis import strategies as st

from radixserve.errors import InvalidRequest
from radixserve.grammar.check import check, grammar
from radixserve.grammar.pool import Matcher
from radixserve.grammar.rules import ebnf
from radixserve.grammar.thinking import Bars, Thinker
from radixserve.grammar.tokens import Tokens
from radixserve.grammar.track import Track
from radixserve.grammar.vocabulary import Vocabulary
from radixserve.guide import Close
from radixserve.text.reasoning import ReasoningParser, Tags, Thought
from radixserve.text.reasoning_tokens import ReasoningCount
from radixserve.wire.params import Constraint
from radixserve.wire.reasoning import Reasoning

BYTES = [bytes([code]) for code in range(256)]
WORDS = [b"</", b"think", b">\n\n", b">\n", b"> so", b'">', b'{"a": ', b"<th", b"ink>", b"yes", b""]
END, OPEN, CLOSE = 266, 267, 268  # without bytes: the end token, and tags as control tokens
TABLE = [*BYTES, *WORDS, b"", b""]
PATTERN = r'\{"a": (yes|no{1,9})\}'


def spelt(text: bytes) -> tuple[int, ...]:
    return tuple(text)


def text_tags(start: str, budget: int | None = None) -> Reasoning:
    gap = b"\n\n"
    return Reasoning(
        begin=b"<think>", end=b"</think>", begin_ids=spelt(b"<think>"), end_ids=spelt(b"</think>"),
        start=start, gap=gap, gap_ids=tuple(spelt(gap[n:]) for n in range(3)), budget=budget,
    )  # fmt: skip


def control_tags(start: str, budget: int | None = None) -> Reasoning:
    return Reasoning(
        begin=b"[THINK]", end=b"[/THINK]", begin_ids=(OPEN,), end_ids=(CLOSE,), start=start,
        spelt={OPEN: b"[THINK]", CLOSE: b"[/THINK]"}, budget=budget,
    )  # fmt: skip


class Place:
    """A constraint compiled once, for many outputs."""

    def __init__(self, pattern: str) -> None:
        found = grammar(check(Constraint(kind="regex", value=pattern)))
        self.vocabulary = Vocabulary(list(TABLE), [END], len(TABLE))
        compiler = xgrammar.GrammarCompiler(self.vocabulary.info)
        self.compiled = compiler.compile_grammar(ebnf(found))
        self.track = Track.of(found)
        self.tokens = Tokens(TABLE, self.vocabulary.ordinary_ids())
        self.bars: dict[bytes, Bars] = {}

    def thinker(self, reasoning: Reasoning) -> Thinker:
        if reasoning.end not in self.bars:
            self.bars[reasoning.end] = Bars(reasoning, TABLE, [END], len(TABLE))
        answer = Matcher(self.compiled, self.vocabulary, [END], self.track, self.tokens)
        return Thinker(reasoning, TABLE, len(TABLE), answer, self.bars[reasoning.end])


@pytest.fixture(scope="module")
def place() -> Place:
    return Place(PATTERN)


def free(reasoning: Reasoning) -> Thinker:
    return Thinker(reasoning, TABLE, len(TABLE))


def legal(thinker: Thinker) -> list[int]:
    row = np.full(-(-len(TABLE) // 32), -1, np.int32)
    if thinker.speaking is not None:
        thinker.speaking.fill(row)
    if thinker.narrows:
        thinker.narrow(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: len(TABLE)]
    return np.flatnonzero(bits).tolist()


LURES = [*spelt(b"</think>"), 256, 257, 258, 259, 260, CLOSE, OPEN, END, ord("<")]


def run(thinker, rng, room, *, one_by_one=False, first=()):
    """(ids, forced, how it ended) of an output that begins with `first` and goes on at random; tags
    come often."""
    first = list(first)
    taken = thinker.begin(room, one_by_one=one_by_one)
    ids, forced = list(taken.ids), taken.forced
    while taken.close is None and len(ids) < room:
        can = legal(thinker)
        lures = [token for token in LURES if token in can]
        token = rng.choice(lures if lures and rng.random() < 0.7 else can)
        if first:
            token = first.pop(0)
            assert token in can
        taken = thinker.take(token, room - len(ids) - 1)
        assert taken.error is None
        assert taken.forced <= len(taken.ids)
        ids += taken.ids
        forced += taken.forced
        if taken.stopped and token == END:
            return ids, forced, "end"
    assert len(ids) <= room
    return ids, forced, taken.close


def spell(reasoning: Reasoning):
    return lambda token: reasoning.spelt.get(token) or TABLE[token]


def heard(reasoning: Reasoning, ids: list[int], *, is_bound: bool):
    text = b"".join(map(spell(reasoning), ids)).decode("utf-8", "replace")
    gap = reasoning.gap.decode() if is_bound else None
    tags = Tags(reasoning.begin.decode(), reasoning.end.decode(), reasoning.gap.decode())
    parser = ReasoningParser(tags, reasoning.start, gap=gap)
    pieces = parser.feed(text) + parser.finish()
    thoughts = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
    return thoughts, "".join(piece.text for piece in pieces if not isinstance(piece, Thought))


@settings(max_examples=400, deadline=None)
@given(
    st.integers(0, 10**9),
    st.sampled_from([text_tags, control_tags]),
    st.sampled_from(["open", "either"]),
    st.sampled_from([None, 0, 1, 5, 40]),
    st.integers(12, 90),
    st.booleans(),
)
def test_the_answer_is_whole_whatever_is_drawn(place, seed, tags, start, budget, room, by_one):
    reasoning = tags(start, budget)
    thinker = place.thinker(reasoning)
    try:
        ids, forced, close = run(thinker, random.Random(seed), room, one_by_one=by_one)
    except InvalidRequest:
        event("no room")
        room_for_nothing = place.thinker(reasoning)
        with pytest.raises(InvalidRequest):
            room_for_nothing.begin(room, one_by_one=by_one)
        return
    assert close in (Close.WHOLE, Close.SHORT)
    assert END not in ids
    assert not (by_one and forced)
    said = heard(reasoning, ids, is_bound=True)[1]
    assert re.fullmatch(PATTERN, said), (ids, said)
    counted = ReasoningCount(reasoning, spell(reasoning))
    counted.add(ids)
    if budget is not None:
        assert counted.tokens <= budget
    if close is Close.SHORT:
        assert len(said) <= len('{"a": no}') or counted.tokens == 0 or room - len(ids) < 12


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 10**9),
    st.sampled_from([text_tags, control_tags]),
    st.sampled_from(["open", "either"]),
    st.sampled_from([0, 1, 5, 12]),
    st.sampled_from([1, 4, 8, 60, 60]),
    st.booleans(),
)
def test_a_budget_alone(seed, tags, start, budget, room, by_one):
    reasoning = tags(start, budget)
    ids, forced, end = run(free(reasoning), random.Random(seed), room, one_by_one=by_one)
    counted = ReasoningCount(reasoning, spell(reasoning))
    counted.add(ids)
    assert counted.tokens <= budget
    assert not (by_one and forced)
    if start == "open" and end is None and room == 60:
        text = b"".join(map(spell(reasoning), ids))
        assert reasoning.end in text
        if forced:
            assert counted.tokens == budget


LOOSE = r"[a-z<>/ \n]{0,14}!"


@pytest.fixture(scope="module")
def loose() -> Place:
    """Answers in which the tags may stand themselves."""
    return Place(LOOSE)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 10**9),
    st.sampled_from([text_tags, control_tags]),
    st.sampled_from([None, 0, 5]),
    st.integers(40, 90),
    st.booleans(),
    st.sampled_from([0, 1, 5, 7]),
)
def test_an_answer_that_begins_like_the_tag(loose, seed, tags, budget, room, by_one, begun):
    """Reasoning begins where the tag is whole, whatever tokens spell it; before that it is text."""
    reasoning = tags("either", budget)
    thinker = loose.thinker(reasoning)
    rng = random.Random(seed)
    ids, _, close = run(thinker, rng, room, one_by_one=by_one, first=list(b"<think>"[:begun]))
    assert close is not None
    thoughts, said = heard(reasoning, ids, is_bound=True)
    assert re.fullmatch(LOOSE, said), (ids, thoughts, said)
    counted = ReasoningCount(reasoning, spell(reasoning))
    counted.add(ids)
    if budget is not None:
        assert counted.tokens <= budget
    if begun == 7 and tags is text_tags:
        assert reasoning.end in b"".join(map(spell(reasoning), ids))


def test_what_is_drawn_in_budget_stays(place):
    thinker = place.thinker(text_tags("open", 3))
    assert thinker.begin(60, one_by_one=False).ids == ()
    assert [thinker.take(ord(c), 50).ids for c in "so"] == [(ord("s"),), (ord("o"),)]
    taken = thinker.take(ord(","), 50)
    assert taken.ids[:11] == (ord(","), *b"</think>\n\n")
    assert taken.thoughts == 11
    assert bytes(b for i in taken.ids[11:] for b in TABLE[i]) == b'{"a": '
    assert taken.forced == len(taken.ids) - 1


def test_a_token_may_end_the_tag_and_be_of_the_gap_but_no_more(place):
    thinker = place.thinker(text_tags("open"))
    thinker.begin(60, one_by_one=False)
    for token in (*b"why", 256, 257):  # "</", "think"
        assert thinker.take(token, 50).ids == (token,)
    can = legal(thinker)
    assert 258 in can  # ">\n\n"
    assert 259 in can  # ">\n"
    assert ord(">") in can
    assert 260 not in can  # "> so" would be of the answer
    assert 260 in legal(place.thinker(text_tags("open")))
    taken = thinker.take(259, 50)
    assert taken.ids[:2] == (259, ord("\n"))  # the rest of the gap
    assert taken.thoughts == 2


def test_no_end_token_before_the_answer(place):
    thinker = place.thinker(control_tags("open"))
    thinker.begin(60, one_by_one=False)
    assert END not in legal(thinker)
    assert CLOSE in legal(thinker)
    assert END in legal(free(control_tags("open")))


def test_an_output_may_reason_or_answer(place):
    for reasoning, first in ((text_tags("either"), ord("<")), (control_tags("either"), OPEN)):
        thinker = place.thinker(reasoning)
        assert thinker.begin(60, one_by_one=False).ids == ()
        assert set(legal(thinker)) == {first, ord("{"), 262}
        assert thinker.take(first, 59).ids == reasoning.begin_ids
        thinker = place.thinker(reasoning)
        thinker.begin(60, one_by_one=False)
        assert thinker.take(ord("{"), 59).ids[0] == ord("{")
        thinker = place.thinker(reasoning)
        thinker.begin(5, one_by_one=False)
        assert first not in legal(thinker)  # there is no room for both


def test_no_room_at_all(place):
    with pytest.raises(InvalidRequest, match="behind 10 that end the reasoning"):
        place.thinker(text_tags("open")).begin(12, one_by_one=False)


def test_whole_at_counts_from_the_answer(place):
    thinker = place.thinker(text_tags("open", 1))
    thinker.begin(60, one_by_one=False)
    taken = thinker.take(ord("x"), 50)
    before = len(b"x</think>\n\n")
    assert not thinker.whole_at(before)
    taken = thinker.take(265, 30)  # "yes", and the brace is forced
    assert taken.close is Close.WHOLE
    assert thinker.whole_at(before + len('{"a": yes}'))
    assert not thinker.whole_at(before + len('{"a": yes'))
