"""Says whether a constraint can be enforced, before anything is generated.

Owns: the reading of every kind of constraint into a grammar, limits, reports. Must not know:
tokens, the grammar engine, HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from radixserve.errors import InvalidRequest
from radixserve.grammar import (
    automaton,
    document,
    ebnf,
    effort,
    normalise,
    regex,
    rules,
    spell,
    structure,
    structure_reader,
    tags,
)
from radixserve.grammar.refusal import CODE, refused
from radixserve.grammar.rules import Expr, Grammar
from radixserve.wire.params import Constraint, Writing

MAX_CHOICES = 4096
MAX_GRAMMAR_BYTES = 1024 * 1024
MAX_STEPS = 5_000_000  # of reading one constraint: seconds


def check(constraint: Constraint) -> Constraint:
    """`constraint` in the one form that stands for all that mean the same: what the engine
    compiles.

    Raises InvalidRequest (code unsupported_schema) naming JSON pointer and keyword.
    """
    return _checked(constraint)


@lru_cache(maxsize=128)
def _checked(constraint: Constraint) -> Constraint:
    try:
        grammar(constraint)
        return _canonical(constraint)
    except InvalidRequest as error:
        error.param = error.param or constraint.kind
        raise


def grammar(constraint: Constraint) -> Grammar:
    """The rules that `constraint` stands for. Raises InvalidRequest."""
    with effort.limited(MAX_STEPS) as meter:
        try:
            found = _READERS[constraint.kind](constraint)
        except RecursionError as error:
            raise refused("", "", "its parts lead into each other too deeply") from error
        except effort.Exhausted as error:
            if error.meter is not meter:
                raise
            raise refused("", "", f"reading it takes more than {MAX_STEPS} steps") from error
    size = len(rules.ebnf(found))
    if size > MAX_GRAMMAR_BYTES:
        raise refused("", "", f"its grammar takes {size} bytes, {MAX_GRAMMAR_BYTES} are possible")
    return found


def _canonical(constraint: Constraint) -> Constraint:
    value = constraint.value
    if constraint.kind == "json_schema":
        value = _dumped(document.Document(_parsed(value)).whole())
    elif constraint.kind == "choice":
        value = _dumped(_parsed(value))
    elif constraint.kind == "structural_tag":
        value = _dumped(structure.canonical(structure_reader.read(_parsed(value))))
    return msgspec.structs.replace(constraint, value=value)


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _parsed(text: str) -> Any:
    def no_constant(name: str) -> Any:
        raise refused("", "", f"{name} is not JSON")

    try:
        return json.loads(text, parse_constant=no_constant)
    except RecursionError as error:
        raise refused("", "", "nested too deeply") from error
    except ValueError as error:
        raise refused("", "", f"not JSON: {error}") from error


def _schema(constraint: Constraint) -> Grammar:
    return _of_schema(_parsed(constraint.value), constraint.whitespace)


def _of_schema(schema: object, writing: Writing) -> Grammar:
    return normalise.grammar_of(document.Document(schema), writing)


def _object(constraint: Constraint) -> Grammar:
    return _of_schema({"type": "object"}, constraint.whitespace)


def _regex(constraint: Constraint) -> Grammar:
    try:
        heads, pattern = regex.split_heads(constraint.value)
        tree = regex.parse(pattern)
        tree = regex.whole(tree) or tree
        if regex.is_flat(tree) and not heads:
            table = {"root": spell.tree(tree, spell.plain)}
        else:
            table = _spelled(automaton.from_regex(constraint.value, search=False))
    except (regex.RegexError, automaton.TooLarge) as error:
        raise InvalidRequest(f"regex {constraint.value!r}: {error}", code=CODE) from error
    return _finished(table, "no text matches this regex")


def _spelled(found: automaton.Automaton) -> dict[str, Expr]:
    table: dict[str, Expr] = {}
    table["root"] = spell.Speller(table).spell(found, spell.plain)
    return table


def _choice(constraint: Constraint) -> Grammar:
    texts = _parsed(constraint.value)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("choice is a list of strings", code=CODE)
    if not 0 < len(texts) <= MAX_CHOICES:
        raise InvalidRequest(f"choice has {len(texts)} texts, 1 to {MAX_CHOICES} work", code=CODE)
    if any(0xD800 <= ord(char) <= 0xDFFF for text in texts for char in text):
        raise InvalidRequest("choice holds a lone surrogate", code=CODE)
    try:
        return _finished(_spelled(automaton.from_texts(texts)), "no choice")
    except automaton.TooLarge as error:
        raise InvalidRequest(f"choice: {error}", code=CODE) from error


def _ebnf(constraint: Constraint) -> Grammar:
    try:
        table = ebnf.read(constraint.value)
    except ebnf.EbnfError as error:
        raise InvalidRequest(f"ebnf: {error}", code=CODE) from error
    return _finished(table, "no text can be completed under this grammar")


def _finished(table: dict[str, Expr], otherwise: str) -> Grammar:
    found = rules.finish(table)
    if found.is_empty:
        raise InvalidRequest(otherwise, code=CODE)
    return found


def _structural_tag(constraint: Constraint) -> Grammar:
    found = structure_reader.read(_parsed(constraint.value))
    made = tags.grammar_of(found, constraint.whitespace, grammar)
    if made.is_empty:
        raise structure.wrong("", "", "no text can be completed under it")
    return made


_READERS: dict[str, Callable[[Constraint], Grammar]] = {
    "json_schema": _schema,
    "json_object": _object,
    "regex": _regex,
    "choice": _choice,
    "ebnf": _ebnf,
    "structural_tag": _structural_tag,
}
