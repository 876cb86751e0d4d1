"""Reading tool calls: the same calls however the text is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.text.tool_calls import SYNTAXES
from radixserve.text.tool_calls_stream import Argued, Begun, Said

NAMES = ("f", "get_weather", "get", "now-2")
JSON_SYNTAXES = ("hermes", "generic", "mistral", "llama3_json")


def read(name, pieces, *, is_marked=False):
    """(content, [(name, arguments), ..]) of text in pieces; checks the order of the events."""
    parser = SYNTAXES[name].parser(NAMES, is_marked=is_marked)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    content, calls = "", []
    for event in events:
        match event:
            case Said(text):
                assert text
                content += text
            case Begun(index, called):
                assert index == len(calls)
                calls.append([called, ""])
            case Argued(index, text):
                assert text
                assert index == len(calls) - 1
                calls[index][1] += text
    return content, [tuple(call) for call in calls]


def cuts(text):
    yield list(text)
    for at in range(len(text) + 1):
        yield [text[:at], text[at:]]


def check_cuts(name, text, *, is_marked=False):
    whole = read(name, [text], is_marked=is_marked)
    for pieces in cuts(text):
        assert read(name, pieces, is_marked=is_marked) == whole, pieces
    return whole


HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TRANSCRIPTS = [
    ("hermes", HERMES, "", [("f", '{"a": 1}')]),
    ("hermes", f"Sure. {HERMES} bye", "Sure.  bye", [("f", '{"a": 1}')]),
    ("hermes", f"{HERMES}\n{HERMES}\n", "", [("f", '{"a": 1}')] * 2),
    ("hermes", f"\n {HERMES}{HERMES}", "", [("f", '{"a": 1}')] * 2),
    ("hermes", HERMES[: -len("\n</tool_call>")], "", [("f", '{"a": 1}')]),
    ("hermes", HERMES.replace(" ", "").replace("\n", ""), "", [("f", '{"a":1}')]),
    ("hermes", '<tool_call>{"arguments": {"é": "}"}, "name": "get"}</tool_call>', "",
     [("get", '{"\\u00e9": "}"}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 2}"}</tool_call>', "",
     [("f", '{"a": 2}')]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}, "id": "x}"}</tool_call> x', " x",
     [("f", "{}")]),
    ("hermes", '<tool_call>[{"name": "f", "arguments": {}}, {"name": "get", "parameters": {}}]'
     "</tool_call>", "", [("f", "{}"), ("get", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>\\"<tool_call>"}}'
     "</tool_call>", "", [("f", '{"a": "</tool_call>\\"<tool_call>"}')]),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": [1, {}]}}]', "",
     [("f", '{"a": [1, {}]}')]),
    ("mistral", 'a [TOOL_CALLS][{"name": "f", "arguments": {}},{"name": "get", "arguments": {}}] b',
     "a  b", [("f", "{}"), ("get", "{}")]),
    ("llama3_json", '{"name": "f", "parameters": {"a": "b"}}', "", [("f", '{"a": "b"}')]),
    ("llama3_json", '{"name": "f", "parameters": {}}; {"name": "get", "parameters": {}}', "",
     [("f", "{}"), ("get", "{}")]),
    ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", "{}")]),
    ("pythonic", '[f(a="x]", b=[1, None, -2.5], c={"k": (true,)}), get()]', "",
     [("f", '{"a": "x]", "b": [1, null, -2.5], "c": {"k": [true]}}'), ("get", "{}")]),
    ("pythonic", "[f(a='it\\'s')]\n", "", [("f", '{"a": "it\'s"}')]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "content", "calls"), TRANSCRIPTS)
def test_calls_are_read_however_the_text_is_cut(name, text, content, calls):
    assert check_cuts(name, text) == (content, calls)
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", ""),
        ("hermes", " \n"),
        ("hermes", "a < b, <tool_cal"),
        ("hermes", "<tool_call>"),
        ("hermes", "<tool_call></tool_call>"),
        ("hermes", "<tool_call>[]</tool_call>"),
        ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": 3}</tool_call>'),
        ("hermes", '<tool_call>{"name": ["f"], "arguments": {}}</tool_call>'),
        ("hermes", "<tool_call>{broken}</tool_call>"),
        ("hermes", "<tool_call>" + '{"a":' * 3000),
        ("mistral", '[{"name": "f", "arguments": {}}]'),
        ("mistral", "[TOOL_CALLS] none"),
        ("llama3_json", 'so: {"name": "f", "parameters": {}}'),
        ("llama3_json", ' {"name": "f", "parameters": {}}'),
        ("llama3_json", '{"answer": 4}'),
        ("llama3_json", "<|pyth"),
        ("pythonic", "[1, 2]"),
        ("pythonic", "[f(1)]"),
        ("pythonic", "[f(a=b)]"),
        ("pythonic", "[f(**{})]"),
        ("pythonic", "[f(a=1, a=2)]"),
        ("pythonic", "[f(a=1e999)]"),
        ("pythonic", "[unknown()]"),
        ("pythonic", "[f(a=1)"),
        ("pythonic", "[f(a=\"\\d']"),
        ("pythonic", "[f(a=b'x')]"),
        ("pythonic", "[" * 300 + "f("),
        ("pythonic", "I say [f()]"),
    ],
)
def test_what_is_no_call_is_text(name, text):
    if len(text) > 1000:
        assert read(name, [text]) == read(name, list(text)) == (text, [])
    else:
        assert check_cuts(name, text) == (text, [])


def test_a_marked_call_is_told_from_an_answer():
    call = '{"name": "f", "parameters": {}}'
    assert check_cuts("llama3_json", call, is_marked=True) == (call, [])
    marked = f"<|python_tag|>{call}"
    assert check_cuts("llama3_json", marked, is_marked=True) == ("", [("f", "{}")])


def test_arguments_are_told_as_they_come():
    parser = SYNTAXES["hermes"].parser(NAMES)
    assert parser.feed('<tool_call>\n{"name": "f", "argum') == []
    assert parser.feed('ents": {"a') == [Begun(0, "f"), Argued(0, '{"a')]
    assert parser.feed('": 1}') == [Argued(0, '": 1}')]
    assert parser.feed("}\n</tool_call>") == []
    assert parser.feed(" so") == [Said(" so")]
    assert parser.finish() == []


# ---- generated transcripts ----

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('a"\\<>{}[]é\n/', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab}", max_size=2), inner),
    max_leaves=4,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.dictionaries(st.sampled_from("abc"), VALUES, max_size=2)),
    min_size=1,
    max_size=3,
)
TEXT = st.text("ab <[{\n.", max_size=8)


def spelt(value):
    return json.dumps(value, ensure_ascii=False)


@st.composite
def transcripts(draw, name):
    """(text, content, calls) in one of the syntaxes."""
    syntax = SYNTAXES[name]
    calls = draw(CALLS)
    if name == "pythonic":
        calls = [(called.replace("-", "_"), arguments) for called, arguments in calls]
        calls = [(called, a) for called, a in calls if called in NAMES] or [("f", {})]
        written = (
            f"{called}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
            for called, arguments in calls
        )
        return f"[{', '.join(written)}]", "", calls
    bodies = [
        syntax.head.replace("NAME", called) + spelt(arguments) + syntax.tail
        for called, arguments in calls
    ]
    text = syntax.begin + syntax.separator.join(bodies) + syntax.end
    before = draw(TEXT) if syntax.trigger else ""
    return before + text, before if before.strip() else "", calls


def check_transcript(name, transcript):
    text, content, calls = transcript
    said, found = check_cuts(name, text)
    assert said == content
    assert [(called, json.loads(arguments)) for called, arguments in found] == calls
    assert read(name, [text[i : i + 3] for i in range(0, len(text), 3)]) == (said, found)


@pytest.mark.parametrize("name", sorted(SYNTAXES))
@settings(max_examples=25)
@given(data=st.data())
def test_every_split_of_a_transcript_gives_its_calls(name, data):
    check_transcript(name, data.draw(transcripts(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SYNTAXES))
@settings(max_examples=200)
@given(data=st.data())
def test_every_split_of_200_transcripts_gives_its_calls(name, data):
    check_transcript(name, data.draw(transcripts(name)))
