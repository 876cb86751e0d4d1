"""Telling reasoning from the answer: the same pieces however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.errors import ConfigError
from radixserve.text.reasoning import (
    MISTRAL,
    PARSERS,
    THINK,
    HeardParser,
    ReasoningParser,
    Thought,
    WholeParser,
    continued,
    place_of,
    thinking_of,
)
from radixserve.text.tool_calls import SYNTAXES
from radixserve.text.tool_calls_stream import Argued, Begun, Said
from radixserve.wire.reasoning import Follower, Reasoning


def joined(events):
    """(reasoning, answer, calls); reasoning never comes behind an answer."""
    thoughts, said, calls = "", "", []
    for event in events:
        match event:
            case Thought(text):
                assert text
                assert not said
                assert not calls
                thoughts += text
            case Said(text):
                assert text
                said += text
            case Begun(_, name):
                calls.append([name, ""])
            case Argued(index, text):
                calls[index][1] += text
    return thoughts, said, [tuple(call) for call in calls]


def read(pieces, *, tags=THINK, start="either", gap=None, tools=()):
    calls = SYNTAXES["hermes"].parser(tools) if tools else None
    parser = HeardParser(ReasoningParser(tags, start, gap=gap), calls)
    return joined([e for piece in pieces for e in parser.feed(piece)] + parser.finish())


CASES = [
    # (start, text, reasoning, answer)
    ("either", "<think>\nwhy\n</think>\n\nyes", "why", "yes"),
    ("open", "why\n</think>\n\nyes", "why", "yes"),
    ("open", "<think>why</think>yes", "why", "yes"),  # the prompt had one, the model writes another
    ("open", "<think><think>why</think>yes", "<think>why", "yes"),
    ("either", " \n<think>why</think> yes \n", "why", "yes \n"),
    ("either", "yes <think>no</think>", "", "yes <think>no</think>"),
    ("either", "  yes", "", "  yes"),
    ("either", "yes</think>no", "", "yes</think>no"),
    ("either", "", "", ""),
    ("either", " \n", "", " \n"),
    ("either", "<thin", "", "<thin"),
    ("open", "", "", ""),
    ("open", "why and so on \n", "why and so on", ""),  # it never closes
    ("either", "<think>why </thi", "why </thi", ""),
    ("open", "a < b </ c </think>d", "a < b </ c", "d"),
    ("open", "</think>yes", "", "yes"),
    ("open", "\n\n</think>\n\n", "", ""),
    ("open", "a</think>b</think>c<think>d", "a", "b</think>c<think>d"),
    ("open", "a\n\n\nb</think>c", "a\n\n\nb", "c"),
    ("open", "a</</think>b", "a</", "b"),
    ("open", "é🦙</think>在", "é🦙", "在"),
]  # fmt: skip


def cuts(text):
    yield list(text)
    for i in range(len(text) + 1):
        for j in range(i, len(text) + 1):
            yield [text[:i], text[i:j], text[j:]]


@pytest.mark.parametrize(("start", "text", "thoughts", "said"), CASES)
def test_every_cut_gives_the_same(start, text, thoughts, said):
    for pieces in cuts(text):
        assert read(pieces, start=start) == (thoughts, said, []), pieces


PARTS = st.sampled_from(
    ["<think>", "</think>", "<", "</", "think", ">", " ", "\n", "a", "é", "[THINK]", "[/THINK]"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PARTS, max_size=12), st.sampled_from(["open", "either"]), st.data())
def test_any_text_in_any_cut(parts, start, data):
    text = "".join(parts)
    tags = data.draw(st.sampled_from([THINK, MISTRAL]))
    gap = data.draw(st.sampled_from([None, "\n\n", ""]))
    at = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    pieces = [text[i:j] for i, j in zip([0, *at], [*at, len(text)])]
    whole = read([text], tags=tags, start=start, gap=gap)
    assert read(pieces, tags=tags, start=start, gap=gap) == whole
    thoughts, said, _ = whole
    assert text.endswith(said)
    assert thoughts in text
    assert tags.end not in thoughts


@settings(max_examples=300, deadline=None)
@given(st.lists(PARTS, max_size=12), st.sampled_from(["open", "either"]), st.data())
def test_the_engine_finds_the_same_answer(parts, start, data):
    """Bytes in any pieces, against the text parser."""
    text = "".join(parts).encode()
    at = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    follower = Follower(b"<think>", b"</think>", start)
    for i, j in zip([0, *at], [*at, len(text)]):
        follower.feed(text[i:j])
    thoughts, said, _ = read([text.decode()], start=start)
    if follower.answer_at is None:
        assert follower.phase in ("before", "inside")
        assert follower.phase == "before" or not said
        return
    answer = text[follower.answer_at :].decode()
    if follower.phase == "none":
        assert (thoughts, said) == ("", answer)
        return
    assert answer.lstrip(" \n") == said
    reasoning = text[follower.begin_at : follower.end_at].decode()
    assert reasoning.strip(" \n").removeprefix("<think>").strip(" \n") == thoughts


def test_a_bound_answer_keeps_its_own_blanks():
    """Only the gap that was put before it goes."""
    for pieces in cuts("why</think>\n\n\n 1"):
        assert read(pieces, start="open", gap="\n\n") == ("why", "\n 1", [])
        assert read(pieces, start="open") == ("why", "1", [])
    assert read(["why</think>1"], start="open", gap="\n\n") == ("why", "1", [])
    assert read(["why</think>\n"], start="open", gap="\n\n") == ("why", "\n", [])


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def test_calls_come_behind_the_reasoning():
    text = f"<think>\nI could {CALL}\n</think>\n\nSo: {CALL}"
    for pieces in cuts(text):
        if len(pieces) != 3 or len(pieces[1]) < 4:
            found = read(pieces, tools=("f",))
            assert found == (f"I could {CALL}", "So: ", [("f", '{"a": 1}')])


@pytest.mark.parametrize(
    ("start", "text", "said", "calls"),
    [
        ("either", f"<think>I could {CALL}\n</think>\n\nSo: {CALL}",
         f"<think>I could {CALL}\n</think>\n\nSo: ", [("f", '{"a": 1}')]),
        ("open", f"é{CALL}", f"é{CALL}", []),
        ("open", f"<think>{CALL}", f"<think>{CALL}", []),
        ("either", f"é{CALL}", "é", [("f", '{"a": 1}')]),
        ("either", f"\n<thin{CALL}", "\n<thin", [("f", '{"a": 1}')]),
        ("either", "\n<thin", "\n<thin", []),
    ],
)  # fmt: skip
def test_nor_is_one_in_reasoning_that_stays_in_the_text(start, text, said, calls):
    tags = Reasoning(begin=b"<think>", end=b"</think>", begin_ids=(), end_ids=(), start=start)
    for pieces in cuts(text):
        if len(pieces) != 3 or len(pieces[1]) < 4:
            parser = HeardParser(WholeParser(tags), SYNTAXES["hermes"].parser(("f",)))
            heard = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
            assert joined(heard) == ("", said, calls), pieces


def test_a_call_in_reasoning_that_never_ends_is_none():
    assert read([f"hm {CALL}"], start="open", tools=("f",)) == (f"hm {CALL}", "", [])


def test_without_reasoning_calls_are_read_as_ever():
    parser = HeardParser(None, SYNTAXES["hermes"].parser(("f",)))
    assert joined(parser.feed(f"<think>{CALL}") + parser.finish())[2] == [("f", '{"a": 1}')]


# ---- which tags, and where a prompt leaves them ----

QWEN = "{%- if '</think>' in content %}..{{ '<think>\n' }}"


@pytest.mark.parametrize(
    ("template", "added", "parser", "tags"),
    [
        (QWEN, (), "template", THINK),
        ("{{ '[THINK]' + text + '[/THINK]' }}", (), "template", MISTRAL),
        ("{{ '<think>\n' }}", ("<think>", "</think>"), "template", THINK),
        ("{{ content }}", ("<think>", "</think>"), "template", None),  # tokens that nobody uses
        ("{{ content }}", (), "template", None),
        (QWEN, (), "none", None),
        (QWEN, (), "mistral", MISTRAL),
        ("", (), "think", THINK),
    ],
)
def test_the_template_shows_the_tags(template, added, parser, tags):
    found = thinking_of(template, added, parser)
    assert (found and found.tags) == tags


def test_tags_can_be_given():
    found = thinking_of("", (), "<reason>..</reason>")
    assert (found.tags.begin, found.tags.end) == ("<reason>", "</reason>")
    assert PARSERS["deepseek_r1"].is_open
    for wrong in ("reason", "<a>..", "..</a>", "<a>..<a>", ""):
        with pytest.raises(ConfigError, match="reasoning_parser"):
            thinking_of("", (), wrong)


def test_where_a_prompt_leaves_off():
    assert place_of("<|im_start|>assistant\n<think>\n", THINK) == "open"
    assert place_of("<|im_start|>assistant\n<think>\n\n</think>\n\n", THINK) == "closed"
    assert place_of("<|im_start|>assistant\n", THINK) == "either"
    assert continued("<think>\nso", THINK) == "open"
    assert continued("<think>so</think> a", THINK) == "closed"
    assert continued("a", THINK) == "closed"
    assert continued("", THINK) == "either"
