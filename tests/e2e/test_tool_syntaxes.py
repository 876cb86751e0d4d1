"""What each syntax's grammar lets a random model write is read as valid calls, and as nothing
else."""

from __future__ import annotations

import json

import jsonschema
import pytest

import radixserve as rs
from radixserve.text.tool_calls import SYNTAXES, Syntax
from radixserve.text.tool_calls_stream import Argued, Begun

SCHEMAS = {
    "f": {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 6}, "b": {"enum": [1, None]}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "g": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = list(SCHEMAS.items())
EACH = pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=lambda syntax: syntax.name)


def read(syntax: Syntax, text: str, *, is_marked: bool = False) -> list[tuple[str, object]]:
    parser = syntax.parser(SCHEMAS, is_marked=is_marked)
    calls: list[tuple[str, str]] = []
    for event in [*parser.feed(text), *parser.finish()]:
        match event:
            case Begun(_, name):
                calls.append((name, ""))
            case Argued(index, more):
                calls[index] = (calls[index][0], calls[index][1] + more)
    return [(name, json.loads(arguments)) for name, arguments in calls]


@EACH
@pytest.mark.parametrize("many", [True, False])
def test_calls_of_a_random_model(engine, syntax: Syntax, many: bool) -> None:
    form = {"format": syntax.calls(TOOLS, many=many)}
    params = [
        {"structural_tag": form, "max_new_tokens": 160, "temperature": 1.5, "sampling_seed": seed}
        for seed in range(6)
    ]
    counts = []
    for reply in engine.generate(["the quick brown fox"] * len(params), params):
        calls = read(syntax, reply["text"])
        assert calls, reply["text"]
        for name, arguments in calls:
            jsonschema.validate(arguments, SCHEMAS[name])
        counts.append(len(calls))
    assert max(counts) > 1 if many and syntax.has_many else max(counts) == 1


def accepts(form: object, text: str) -> bool:
    return rs.Grammar.accepts(structural_tag={"format": form}, text=text)


@EACH
def test_text_and_calls_are_told_apart(syntax: Syntax) -> None:
    auto, _ = syntax.text_or(syntax.calls(TOOLS, many=True))
    call = syntax.example("f", '{"a": "x"}')
    for text in ("", "hi", "<", "<b>x", "a {", call):
        assert accepts(auto, text), text
        assert accepts(syntax.text(), text) == (text != call)
        assert read(syntax, text) == ([("f", {"a": "x"})] if text == call else [])
    for text in (syntax.example("f", "{}"), syntax.example("h", "{}"), f"{call} bye"):
        assert not accepts(auto, text), text
    if syntax.trigger:
        assert accepts(auto, f"hi {call}")
        assert read(syntax, f"hi {call}") == [("f", {"a": "x"})]


def test_a_call_of_llama_is_told_from_an_answer() -> None:
    syntax = SYNTAXES["llama3_json"]
    calls = syntax.calls(TOOLS, many=True, is_marked=True)
    form = {"type": "or", "elements": [calls, {"type": "json_schema", "json_schema": True}]}
    answer = syntax.example("f", '{"a": 3}')
    assert accepts(form, answer)
    assert read(syntax, answer, is_marked=True) == []
    call = f"<|python_tag|>{syntax.example('g', '{}')}"
    assert accepts(form, call)
    assert read(syntax, call, is_marked=True) == [("g", {})]
