"""Structural tags: free text in which triggers begin tags, matched without a model."""

from __future__ import annotations

import itertools
import json
import random

import pytest
import xgrammar

import radixserve as rs
from radixserve.grammar import check
from radixserve.grammar.track import Track
from radixserve.wire.params import Constraint
from tests.grammar_bytes import compiler, grammar_of, refusal
from tests.tag_formats import (
    ANY,
    CALLS,
    COUNT,
    FORMATS,
    const,
    either,
    schema,
    separated,
    sequence,
    tag,
    triggered,
    whole,
)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name):
    form, good, bad = FORMATS[name]
    engine = grammar_of("structural_tag", json.dumps(whole(form)))
    for text in good:
        assert engine.accepts(text), f"{text}\n{engine.text}"
        assert rs.Grammar.accepts(structural_tag=whole(form), text=text), text
    for text in bad:
        assert not engine.accepts(text), f"{text}\n{engine.text}"
        assert not rs.Grammar.accepts(structural_tag=whole(form), text=text), text


def test_the_older_spelling_means_the_same():
    older = {
        "type": "structural_tag",
        "structures": [
            {"begin": "<f=a>", "schema": {"title": "T", **COUNT}, "end": "</f>"},
            {"schema": True, "end": "</f>", "begin": "<f=b>"},
        ],
        "triggers": ["<f="],
    }
    newer = whole(triggered(["<f="], CALLS))
    one, two = (
        check.check(Constraint(kind="structural_tag", value=json.dumps(form, indent=indent)))
        for form, indent in ((older, None), (newer, 3))
    )
    assert one == two
    assert check.check(one) == one
    assert one != check.check(Constraint(kind="structural_tag", value=json.dumps(whole(CALLS[0]))))


def test_blanks_inside_schemas_follow_the_option():
    form = whole(triggered(["<f="], CALLS))
    spaced = 'a  <f=a>{"n" :  1}</f>'
    assert not rs.Grammar.accepts(structural_tag=form, text=spaced)
    assert rs.Grammar.accepts(structural_tag=form, text=spaced, whitespace="bounded")


def oracle(text, triggers, tags, start=0):
    """By hand: free text up to the trigger that is whole first, which must be that of a tag."""
    found = [(text.find(t, start) + len(t), t) for t in triggers if t in text[start:]]
    if not found:
        return True
    end = min(found)[0]
    fired = {t for at, t in found if at == end}
    return any(
        text.startswith(whole_tag, end - len(trigger))
        and oracle(text, triggers, tags, end - len(trigger) + len(whole_tag))
        for trigger in fired
        for begin, whole_tag in tags
        if begin.startswith(trigger)
    )


@pytest.mark.parametrize(
    ("triggers", "begins"),
    [
        (["ab"], ["ab", "aba"]),
        (["aab"], ["aab"]),
        (["ab", "b"], ["ab", "ba"]),
        (["a", "bb"], ["ab", "a", "bb"]),
        (["aa"], ["aaa", "aab"]),
        (["abab"], ["abab"]),
    ],
)
def test_free_text_never_holds_a_trigger_without_its_tag(triggers, begins):
    form = whole(triggered(triggers, [tag(begin, const("c"), "d") for begin in begins]))
    tags = [(begin, f"{begin}cd") for begin in begins]
    counts = {True: 0, False: 0}
    for size in range(9):
        texts = map("".join, itertools.product("abc" if size < 7 else "ab", repeat=size))
        for text in [*texts, *(t[0] + w + t[1] for _, w in tags for t in (("b", "a"), ("a", "")))]:
            expected = oracle(text, triggers, tags)
            counts[expected] += 1
            assert rs.Grammar.accepts(structural_tag=form, text=text) == expected, text
    assert min(counts.values()) > 20


ALIKE = {
    "triggered": triggered(["ab"], [tag("abx", const("c"), "d"), tag("aby", const("b"), "d")]),
    "at least one": triggered(["ab"], [tag("abx", const("c"), "d")], at_least_one=True),
    "stop": triggered(["ab"], [tag("abx", const("c"), "d")], stop_after_first=True),
    "separated": separated([tag("a", const("c"), "d"), tag("b", const("x"), "d")], ","),
    "thoughts": sequence(tag("a", ANY, "bd"), ANY),
    "excludes": {**ANY, "excludes": ["abd"]},
}


@pytest.mark.parametrize("name", ALIKE)
def test_the_grammar_engine_reads_structural_tags_alike(name):
    theirs = xgrammar.Grammar.from_structural_tag(json.dumps(whole(ALIKE[name])))
    compiled = compiler().compile_grammar(theirs)
    rng = random.Random(1)
    accepted = 0
    for _ in range(1500):
        pieces = ["a", "b", "x", "c", "d", "y", ",", "ab", "bd", "acd", "bxd", "abxcd", "abybd"]
        text = "".join(rng.choice(pieces) for _ in range(rng.randrange(6)))
        matcher = xgrammar.GrammarMatcher(compiled)
        expected = (not text or matcher.accept_string(text)) and matcher.is_completed()
        found = rs.Grammar.accepts(structural_tag=whole(ALIKE[name]), text=text)
        assert found == expected, text
        accepted += found
    assert 10 < accepted < 1500


def test_outputs_drawn_through_the_mask_read_one_way():
    rng = random.Random(5)
    calls = [tag(f":{name}", schema(COUNT), ".") for name in "ab"]
    form = whole(triggered([":"], calls, at_least_one=True))
    engine = grammar_of("structural_tag", json.dumps(form))
    seen = 0
    for _ in range(60):
        text = engine.draw(rng)
        while text is not None and ":" in text:
            _, _, text = text.partition(":")
            assert text[0] in "ab"
            inner, end, text = text[1:].partition(".")
            assert end
            assert isinstance(json.loads(inner)["n"], int)
            seen += 1
    assert seen > 50


@pytest.mark.parametrize("name", FORMATS)
def test_every_place_has_a_shortest_ending(name):
    form, good, _ = FORMATS[name]
    constraint = check.check(Constraint(kind="structural_tag", value=json.dumps(whole(form))))
    track = Track.of(check.grammar(constraint))
    assert track is not None
    for text in good:
        spelt = text.encode()
        for cut in range(len(spelt) + 1):
            state = track.start.walk(spelt[:cut])
            ending = state.ending()
            assert len(ending) == state.needs <= len(spelt) - cut
            assert state.walk(ending).may_end


REFUSED = [
    ([], "structural_tag at #: is an object"),
    ({"type": "other", "format": ANY}, "#/type"),
    ({"type": "structural_tag"}, "#/structures: is missing"),
    ({"format": ANY, "triggers": ["a"]}, "#/triggers"),
    ({"structures": [], "triggers": ["a"]}, "#/structures: is a list"),
    ({"structures": [{"begin": "a", "end": "b"}], "triggers": ["a"]}, "#/structures/0/schema"),
    (
        {"structures": [{"begin": "a", "end": "b", "schema": True}], "triggers": []},
        "#/triggers: needs",
    ),
    (
        {"structures": [{"begin": "a", "end": "b", "schema": {"type": "x"}}], "triggers": ["a"]},
        "#/structures/0/schema/type: no such type",
    ),
    (whole({"type": "token", "token": 1}), "#/format/type: is one of"),
    (whole({"type": ["tag"]}), "#/format/type: is one of"),
    (whole({}), "#/format/type"),
    (whole({**ANY, "max_tokens": 5}), "#/format/max_tokens: 5 is not supported"),
    (whole({**ANY, "excludes": [""]}), "#/format/excludes/0: is empty"),
    (whole({**ANY, "excludes": "a"}), "#/format/excludes: is a list"),
    (whole({**ANY, "other": 1}), "#/format/other: there is no such field"),
    (whole({"type": "const_string"}), "#/format/value: is missing"),
    (whole(const(5)), "#/format/value: is a text"),
    (whole(const("\ud800")), "#/format/value: holds a lone surrogate"),
    (whole(const("x" * 5000)), "#/format/value: has 5000"),
    (whole({**schema(COUNT), "style": "qwen_xml"}), "#/format/style: 'qwen_xml'"),
    (whole({**schema(COUNT), "any_order": True}), "#/format/any_order"),
    (whole(schema({"items": {"pattern": "(?=a)"}})), "#/format/json_schema/items/pattern"),
    (whole({"type": "regex", "pattern": "a("}), "#/format/pattern: regex 'a('"),
    (whole({"type": "grammar", "grammar": "root ::= x"}), "#/format/grammar: ebnf: rule root"),
    (whole({"type": "grammar", "grammar": "x", "syntax": "lark"}), "#/format/syntax"),
    (whole({"type": "repeat", "content": ANY, "min": 0, "max": -1}), "free text cannot"),
    (whole({"type": "star", "content": schema(True), "min": 0}), "#/format/min"),
    (whole({"type": "star", "content": either(const(""))}), "#/format/content: repeats what"),
    (whole({"type": "repeat", "content": const("a"), "min": 2, "max": 1}), "#/format/max"),
    (whole({"type": "repeat", "content": const("a"), "min": True, "max": 1}), "#/format/min"),
    (whole(tag("<", ANY, "")), "#/format/content: free text needs an end"),
    (whole(tag("<", ANY, [])), "#/format/end: has 0"),
    (whole(sequence()), "#/format/elements: is a list"),
    (whole(sequence(ANY, schema(True))), "#/format/elements/0: free text needs a fixed"),
    (whole(sequence(ANY, ANY)), "#/format/elements/0: free text needs a fixed"),
    (whole(triggered(["<g"], CALLS)), "#/format/triggers/0: '<g' begins no tag"),
    (whole(triggered(["<f=a"], CALLS)), "#/format/tags/1/begin: '<f=b>' begins with no"),
    (
        whole(triggered(["<f=", "f"], [*CALLS, tag("f", ANY, ".")])),
        "#/format/triggers/0: '<f=' holds 'f'",
    ),
    (whole(triggered(["<f="], CALLS, excludes=["<f="])), "'<f=' is excluded"),
    (whole(tag("(", triggered(["<f="], CALLS), "f")), "'<f=' holds 'f', which"),
    (whole(triggered(["<f="], CALLS, at_least_one=1)), "#/format/at_least_one: is true or"),
    (whole(triggered(["<f="], [ANY])), "#/format/tags/0/type: is tag"),
    (whole(sequence({**ANY, "excludes": ["a"]}, const("ba"))), "no text can be"),
    (whole(separated([tag("", ANY, ".")], "")), None),
    (whole(separated([tag("", schema(True), ""), tag("", const(""), "")], "")), "separator"),
    (whole(schema({"type": "string", "minLength": 2, "maxLength": 1})), "#/format/json_schema"),
    (whole(schema(5)), "#/format/json_schema: a schema is"),
]


@pytest.mark.parametrize(("form", "place"), REFUSED)
def test_refusals_name_the_place(form, place):
    if place is None:
        assert check.check(Constraint(kind="structural_tag", value=json.dumps(form)))
        return
    assert place in refusal("structural_tag", form)


def test_bombs_are_refused():
    deep = const("x")
    for _ in range(60):
        deep = {"type": "optional", "content": deep}
    assert "nested deeper" in refusal("structural_tag", whole(deep))
    assert "nested too deeply" in refusal("structural_tag", "[" * 20_000)
    assert "more than 2000" in refusal("structural_tag", whole(either(*[ANY] * 2100)))
    long = whole({**ANY, "excludes": [f"{i:04}" * 900 for i in range(6)]})
    assert "characters" in refusal("structural_tag", long)
    wide = whole({**ANY, "excludes": [chr(0x4E00 + i) + "ab" * 35 for i in range(256)]})
    assert "too many, or too long" in refusal("structural_tag", wide)
    parts = [tag("<", {**ANY, "excludes": [chr(0x4E00 + i) for i in range(250)]}, "e" * 20)] * 20
    assert "too many, or too long" in refusal("structural_tag", whole(sequence(*parts)))
    assert "256 are possible" in refusal("structural_tag", whole({**ANY, "excludes": ["a"] * 257}))
    tags = [tag(f"<f={i}>", schema(True), "</f>") for i in range(400)]
    assert check.check(
        Constraint(kind="structural_tag", value=json.dumps(whole(triggered(["<f="], tags))))
    )


def test_a_report_covers_the_schemas_inside():
    report = rs.Grammar.check(structural_tag=whole(triggered(["<f="], CALLS)))
    assert report.accepted
    pointers = [finding.pointer for finding in report.findings]
    assert "/format/tags/0/content/json_schema/properties/n/type" in pointers
    bad = rs.Grammar.check(structural_tag=whole(schema({"pattern": "(?=a)b"})))
    assert bad.refused[0].pointer == "/format/json_schema/pattern"
