"""rs.Grammar: checking and matching without a model."""

from __future__ import annotations

import subprocess
import sys

import pydantic
import pytest

import radixserve as rs

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "title": "Age"}},
    "required": ["name"],
    "additionalProperties": False,
}


def test_a_report_says_what_becomes_of_each_keyword():
    report = rs.Grammar.check({**PERSON, "additionalProperties": True})
    assert report.accepted
    assert {f.pointer: f.verdict for f in report.findings} == {
        "/type": "enforced",
        "/properties": "enforced",
        "/properties/name/type": "enforced",
        "/properties/age/type": "enforced",
        "/properties/age/title": "ignored",
        "/required": "enforced",
        "/additionalProperties": "rewritten",
    }
    closed = rs.Grammar.check(PERSON)
    assert closed.findings[-1].verdict == "enforced"
    assert str(closed).splitlines()[-1] == "accepted"
    assert "/properties/age/title  ignored" in str(closed)


def test_a_refusal_stands_in_its_place():
    report = rs.Grammar.check({"properties": {"a": {"pattern": "(?=a)", "minLength": 1}}})
    assert not report.accepted
    (finding,) = report.refused
    assert (finding.pointer, finding.keyword) == ("/properties/a/pattern", "pattern")
    assert "look-around" in finding.note
    assert [f.pointer for f in report.findings].count("/properties/a/pattern") == 1
    (whole,) = rs.Grammar.check({"type": "string", "minLength": 2, "maxLength": 1}).refused
    assert whole.pointer == ""


@pytest.mark.parametrize(
    ("constraint", "why"),
    [
        ({"schema": "{"}, "not JSON"),
        ({"schema": {"type": "strung"}}, "no such type"),
        ({"schema": {"const": float("nan")}}, "not JSON"),
        ({"regex": "a("}, "unfinished group"),
        ({"ebnf": "root ::= other"}, "not defined"),
        ({"choice": []}, "0 texts"),
        ({"regex": "a" * 10_000}, "bytes"),
        ({"choice": ["\ud800"]}, "surrogate"),
    ],
)
def test_refusals_of_every_kind(constraint, why):
    report = rs.Grammar.check(**constraint)
    assert not report.accepted
    assert why in report.refused[0].note
    with pytest.raises(rs.RequestError):
        rs.Grammar.accepts(text="a", **constraint)


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        ({"schema": PERSON}, '{"name": "Zoë", "age": 7}', '{"name": "Zoë", "age": 7.5}'),
        ({"schema": '{"const": [1]}'}, "[1]", "[1] "),
        ({"schema": True}, '{"a": [null]}', ""),
        ({"schema": PERSON, "whitespace": "bounded"}, '{ "name" :"a"\n}', '{ "name" :a}'),
        ({"regex": "(ab)+"}, "abab", "aba"),
        ({"regex": "é?"}, "", "e"),
        ({"choice": ["yes", "no"]}, "no", "n"),
        ({"ebnf": 'root ::= "(" root ")" | "x"'}, "((x))", "((x)"),
        ({"ebnf": 'root ::= root "+" "1" | "1"'}, "1+1+1", "1+"),
        ({"regex": "."}, "a", "\ud800"),
    ],
)
def test_texts_are_matched_to_their_end(constraint, good, bad):
    assert rs.Grammar.check(**constraint).accepted
    assert rs.Grammar.accepts(text=good, **constraint)
    assert not rs.Grammar.accepts(text=bad, **constraint)


def test_a_pydantic_model_is_a_schema():
    class Card(pydantic.BaseModel):
        title: str
        stars: int = pydantic.Field(ge=1, le=5)

    assert rs.Grammar.check(Card).accepted
    assert rs.Grammar.accepts(Card, '{"title": "t", "stars": 5}')
    assert not rs.Grammar.accepts(Card, '{"title": "t", "stars": 6}')


@pytest.mark.parametrize("constraint", [{}, {"schema": True, "regex": "a"}])
def test_exactly_one_constraint_is_asked_about(constraint):
    with pytest.raises(TypeError, match="give one of"):
        rs.Grammar.check(**constraint)
    with pytest.raises(TypeError, match="give one of"):
        rs.Grammar.accepts(text="a", **constraint)


def test_checking_brings_no_torch():
    code = (
        "import sys, radixserve as rs\n"
        "assert rs.Grammar.check({'type': 'string'}).accepted\n"
        "assert rs.Grammar.accepts({'type': 'string'}, '\"a\"')\n"
        "print(sorted(sys.modules.keys() & {'torch', 'xgrammar', 'transformers', 'zmq'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
