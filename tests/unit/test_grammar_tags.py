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

COUNT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ANY = {"type": "any_text"}


def const(text):
    return {"type": "const_string", "value": text}


def schema(value):
    return {"type": "json_schema", "json_schema": value}


def tag(begin, content, end):
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def sequence(*elements):
    return {"type": "sequence", "elements": list(elements)}


def either(*elements):
    return {"type": "or", "elements": list(elements)}


def triggered(triggers, tags, **options):
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, **options}


def separated(tags, separator, **options):
    return {"type": "tags_with_separator", "tags": tags, "separator": separator, **options}


def whole(form):
    return {"type": "structural_tag", "format": form}


CALLS = [tag("<f=a>", schema(COUNT), "</f>"), tag("<f=b>", schema(True), "</f>")]
CALL = '<f=a>{"n": 1}</f>'
THINK = tag("<think>", ANY, "</think>")

FORMATS = {
    "const": (const("yes"), ["yes"], ["", "yesyes", "no"]),
    "schema": (schema(COUNT), ['{"n": 1}'], ['{"n":1}', "{}", '{"n": 1} ']),
    "boolean": (schema({"enum": [1, "a"]}), ["1", '"a"'], ["a"]),
    "regex": ({"type": "regex", "pattern": "[a-c]{2}"}, ["ab"], ["a", "abc"]),
    "grammar": (
        {"type": "grammar", "grammar": 'root ::= "(" root ")" | string\nstring ::= "x"'},
        ["x", "((x))"],
        ["(x", '"x"'],
    ),
    "any": (ANY, ["", "é\n🚀<"], []),
    "excludes": ({**ANY, "excludes": ["ab", "bba"]}, ["", "a", "ba", "aabb"[2:]], ["ab", "xbbax"]),
    "sequence": (sequence(const("a"), schema({"type": "null"}), const("b")), ["anullb"], ["anull"]),
    "or": (either(const("a"), sequence(const("b"), ANY)), ["a", "b", "bxa"], ["", "ax"]),
    "tag": (tag("<", schema({"const": 1}), [">", "/"]), ["<1>", "<1/"], ["<1", "<1>>", "1>"]),
    "tag around text": (
        THINK,
        ["<think></think>", "<think>a</thin></think>"],
        ["<think>", "<think></think></think>", "<think></think>x"],
    ),
    "thoughts, then text": (
        sequence(THINK, ANY),
        ["<think></think>", "<think>a</think>b</think>"],
        ["<think>", "a<think></think>"],
    ),
    "text, then a tag": (
        sequence(ANY, tag("<x>", schema({"type": "integer"}), "</x>")),
        ["<x>1</x>", "ab<<x>1</x>"],
        ["", "<x>", "<x><x>1</x>", "<x>1</x> "],
    ),
    "text, then one of": (
        sequence(ANY, either(const("yes"), const("no")), const(".")),
        ["yes.", "maybe no.", "nno."],
        ["yes", "nono.", "no yes."],
    ),
    "optional": ({"type": "optional", "content": const("ab")}, ["", "ab"], ["a", "abab"]),
    "optional text": (
        tag("(", {"type": "optional", "content": sequence(const("!"), ANY)}, ")"),
        ["()", "(!)", "(! a)"],
        ["(a)", "(!))"],
    ),
    "star": ({"type": "star", "content": const("ab")}, ["", "abab"], ["aba"]),
    "plus": ({"type": "plus", "content": THINK}, ["<think></think>" * 2], [""]),
    "repeat": (
        {"type": "repeat", "content": const("a"), "min": 2, "max": 3},
        ["aa", "aaa"],
        ["a", "aaaa"],
    ),
    "repeat without end": (
        {"type": "repeat", "content": const("a"), "min": 2, "max": -1},
        ["aa", "aaaaaa"],
        ["a"],
    ),
    "triggered": (
        triggered(["<f="], CALLS),
        ["", "text < <f", CALL, f"a{CALL}b{CALL}", '<f=b>[null, "<f="]</f>', f"<{CALL}<"],
        ["<f=", "<f=c>", "<f=a>", "<f=a>{}</f>", f"{CALL}<f=", "<f=b>"],
    ),
    "at least one": (
        triggered(["<f="], CALLS, at_least_one=True),
        [CALL, f"{CALL}b", f"{CALL}a{CALL}", CALL * 3],
        ["", "text", "<f", f"a{CALL}"],
    ),
    "stop after first": (
        triggered(["<f="], CALLS, stop_after_first=True),
        ["", "text", CALL, f"a{CALL}"],
        [CALL * 2, f"{CALL} "],
    ),
    "exactly one": (
        triggered(["<f="], CALLS, stop_after_first=True, at_least_one=True),
        [CALL],
        ["", "a", f"a{CALL}", CALL * 2, f"{CALL} "],
    ),
    "exactly one, then text": (
        sequence(
            triggered(["<f="], CALLS, stop_after_first=True, at_least_one=True),
            schema({"type": "integer"}),
        ),
        [f"{CALL}12"],
        [CALL, "12", f"a{CALL}12"],
    ),
    "triggered with excludes": (
        triggered(["<f="], CALLS, excludes=["bad"]),
        ["ba", f"{CALL}d"],
        ["bad", f"{CALL}abad"],
    ),
    "triggered in a tag": (
        tag("[", triggered(["<f="], CALLS, at_least_one=True), "]"),
        [f"[{CALL}]", f"[{CALL}b{CALL}]", '[<f=b>["]"]</f>]'],
        ["[]", "[a]", f"[a{CALL}]", f"[]{CALL}]", f"[{CALL}", f"[{CALL}]]"],
    ),
    "free text in a triggered tag": (
        triggered(["<think>", "<f="], [THINK, *CALLS]),
        ["<think>a <f= b</think>", f"<think></think>{CALL}", "</think>"],
        ["<think>", "a<think>b", "<think></think><f="],
    ),
    "separated": (
        separated(CALLS, ", "),
        ["", CALL, f"{CALL}, {CALL}, {CALL}"],
        [CALL * 2, f"{CALL}, ", "x"],
    ),
    "separated, at least one": (
        separated(CALLS, "", at_least_one=True),
        [CALL, CALL * 3],
        ["", f"{CALL} {CALL}"],
    ),
    "separated, one": (
        separated(CALLS, ",", at_least_one=True, stop_after_first=True),
        [CALL],
        ["", f"{CALL},{CALL}"],
    ),
}  # fmt: skip


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
    (whole(tag("<", ANY, [])), "#/format/end: needs"),
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


def test_a_report_covers_the_schemas_inside():
    report = rs.Grammar.check(structural_tag=whole(triggered(["<f="], CALLS)))
    assert report.accepted
    pointers = [finding.pointer for finding in report.findings]
    assert "/format/tags/0/content/json_schema/properties/n/type" in pointers
    bad = rs.Grammar.check(structural_tag=whole(schema({"pattern": "(?=a)b"})))
    assert bad.refused[0].pointer == "/format/json_schema/pattern"
