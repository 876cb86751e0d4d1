"""Structural tags of every format, with texts that they allow and texts that they do not."""

from __future__ import annotations

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
