"""Grammars as clients write them."""

from __future__ import annotations

import pytest

from radixserve.grammar import ebnf, rules
from radixserve.wire.params import Constraint
from tests.grammar_bytes import ByteGrammar


def test_everything_the_syntax_has():
    grammar = ByteGrammar(
        Constraint(
            kind="ebnf",
            value="""# a list of words
root ::= "[" (word ("," " "? word)*)? "]"   # up to the bracket
word ::= [a-z]{1,3} | "\\u00e9\\n\\x41\\"" | [^a-z\\]\\-]
       | number
number ::= "-"? [0-9]+ ("." [0-9]{2})?
""",
        )
    )
    for text in ("[]", "[abc]", '[é\nA"]', "[abc, -12.34,x]", "[Q]"):
        assert grammar.accepts(text), text
    for text in ("", "[", "[abcd]", "[-]", "[1.2]", "[a,]"):
        assert not grammar.accepts(text), text


def test_recursion_that_is_fine():
    text = 'root ::= root "+" term | term\nterm ::= "x" | "(" root ")"'
    grammar = ByteGrammar(Constraint(kind="ebnf", value=text))
    assert grammar.accepts("x+(x+x)+x")
    assert not grammar.accepts("x+")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('a ::= "x"', "no rule root"),
        ("root ::= b", "not defined"),
        ('root ::= "a"\nroot ::= "b"', "twice"),
        ('root ::= ("a"*)*', "repeats without end"),
        ('root ::= "" | root root', "begins with itself"),
        ('root ::= "a" |', "empty alternative"),
        ("root ::= [^\\x00-\\U0010FFFF]", "no character"),
        ('root ::= "a"{3,2}', "wrong order"),
        ('root ::= "a"{999999}', "above"),
        ('root ::= "\\q"', "unknown escape"),
        ('root ::= Token("x")', "unexpected Token"),
        ("root ::= @", "cannot read"),
        ("root ::= " + "(" * 100 + '"a"' + ")" * 100, "deeper"),
    ],
)
def test_what_is_refused(text, why):
    with pytest.raises(ebnf.EbnfError, match=why):
        ebnf.read(text)


def test_what_cannot_be_completed_is_pruned():
    found = rules.finish(ebnf.read('root ::= "a" | "b" loop\nloop ::= "c" loop'))
    assert found.rules == {"root": rules.Text("a")}
    assert found.shortest == {"root": 1}
    assert rules.finish(ebnf.read('root ::= "c" root')).is_empty


def test_shortest_completions():
    found = rules.finish(ebnf.read('root ::= item{2,} "é"\nitem ::= "abc" | [0-9] item | "xy"'))
    assert found.shortest == {"root": 2 * 2 + 2, "item": 2}
