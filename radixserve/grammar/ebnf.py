"""Reads grammars in EBNF.

Owns: the syntax (GBNF: name ::= body, "text", [class], ( ), |, ?, *, +, {m,n}, # comments) and what
no grammar may do. Must not know: who runs the grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from radixserve.grammar import charset, effort
from radixserve.grammar.rules import (
    Alt,
    Chars,
    Expr,
    Ref,
    Repeat,
    Seq,
    Text,
    alt,
    names_in,
    repeat,
    seq,
)

MAX_REPEAT = 5000
MAX_RULES = 2000
_MAX_DEPTH = 60
_STEP = 20  # for one token, as effort counts
_RESERVED = frozenset({"TagDispatch", "Token", "ExcludeToken", "TokenTagDispatch"})


class EbnfError(ValueError):
    """The grammar cannot be used; says what and where."""


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


_TOKENS = re.compile(
    r"""(?P<blank>[ \t\r\n]+|\#[^\n]*)
    |(?P<define>[A-Za-z_][A-Za-z0-9_.-]*[ \t]*::=)
    |(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<chars>\[(?:[^\]\\\n]|\\.)*\])
    |(?P<bounds>\{[ ]*[0-9]*[ ]*(?:,[ ]*[0-9]*[ ]*)?\})
    |(?P<mark>[()|?*+])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|u\{([0-9A-Fa-f]{1,6})\}|(.))|(.)",
    re.DOTALL,
)
_SHORT = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "b": "\b", "0": "\0"}


def read(text: str) -> dict[str, Expr]:
    """The rules of a grammar, which starts in the rule root. Raises EbnfError."""
    tokens = list(_tokens(text))
    rules: dict[str, Expr] = {}
    for start, end in _definitions(tokens):
        name = tokens[start].text
        if name in rules:
            raise EbnfError(f"line {tokens[start].line}: rule {name} is defined twice")
        reader = _Reader(tokens[start + 1 : end], tokens[start].line)
        rules[name] = reader.whole()
    _check(rules)
    return rules


def _tokens(text: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(text):
        match = _TOKENS.match(text, at)
        if match is None:
            raise EbnfError(f"line {line}: cannot read {text[at : at + 20]!r}")
        kind = match.lastgroup or ""
        found = match[0]
        if kind == "define":
            found = found[:-3].rstrip()
        if kind != "blank":
            effort.spend(_STEP)
            yield _Token(kind, found, line)
        line += match[0].count("\n")
        at = match.end()


def _definitions(tokens: list[_Token]) -> Iterator[tuple[int, int]]:
    starts = [i for i, token in enumerate(tokens) if token.kind == "define"]
    if not starts or starts[0] != 0:
        raise EbnfError("a grammar begins with name ::= body")
    if len(starts) > MAX_RULES:
        raise EbnfError(f"{len(starts)} rules, at most {MAX_RULES} are possible")
    yield from zip(starts, [*starts[1:], len(tokens)])


class _Reader:
    """The body of one rule."""

    def __init__(self, tokens: list[_Token], line: int) -> None:
        self._tokens = tokens
        self._at = 0
        self._line = line

    def whole(self) -> Expr:
        expr = self._choice(0)
        if self._at < len(self._tokens):
            raise self._error(f"unexpected {self._tokens[self._at].text}")
        return expr

    def _error(self, what: str) -> EbnfError:
        line = self._tokens[self._at].line if self._at < len(self._tokens) else self._line
        return EbnfError(f"line {line}: {what}")

    def _take(self, text: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at][:2] == ("mark", text):
            self._at += 1
            return True
        return False

    def _choice(self, depth: int) -> Expr:
        if depth > _MAX_DEPTH:
            raise self._error(f"groups nested deeper than {_MAX_DEPTH}")
        options = [self._sequence(depth)]
        while self._take("|"):
            options.append(self._sequence(depth))
        return alt(*options)

    def _sequence(self, depth: int) -> Expr:
        parts = []
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.kind == "mark" and token.text in "|)":
                break
            parts.append(self._repeats(self._atom(depth)))
        if not parts:
            raise self._error('an empty alternative is written ""')
        return seq(*parts)

    def _repeats(self, part: Expr) -> Expr:
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            bounds = {"?": (0, 1), "*": (0, None), "+": (1, None)}.get(token.text)
            if token.kind == "bounds":
                bounds = self._bounds(token.text)
            elif token.kind != "mark" or bounds is None:
                break
            self._at += 1
            part = repeat(part, *bounds)
        return part

    def _bounds(self, text: str) -> tuple[int, int | None]:
        first, comma, second = text[1:-1].replace(" ", "").partition(",")
        if (not first and not second) or len(first) > 6 or len(second) > 6:
            raise self._error(f"bad repetition {text}")
        low = int(first or 0)
        high = (int(second) if second else None) if comma else low
        if max(low, high or 0) > MAX_REPEAT:
            raise self._error(f"repetition above {MAX_REPEAT}")
        if high is not None and high < low:
            raise self._error("repetition bounds in the wrong order")
        return low, high

    def _atom(self, depth: int) -> Expr:
        token = self._tokens[self._at]
        if self._take("("):
            expr = self._choice(depth + 1)
            if not self._take(")"):
                raise self._error("unfinished group")
            return expr
        if token.kind == "name" and token.text not in _RESERVED:
            self._at += 1
            return Ref(token.text)
        if token.kind == "text":
            text = "".join(self._characters(token.text[1:-1]))
            self._at += 1
            return Text(text)
        if token.kind == "chars":
            found = self._class(token.text[1:-1])
            self._at += 1
            return found
        raise self._error(f"unexpected {token.text}")

    def _characters(self, text: str) -> Iterator[str]:
        for match in _ESCAPE.finditer(text):
            yield self._character(match)

    def _character(self, match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3] or match[4]
        if code:
            if int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) <= 0xDFFF:
                raise self._error(f"no such character: {match[0]}")
            return chr(int(code, 16))
        if match[5]:
            if match[5].isalnum() and match[5] not in _SHORT:
                raise self._error(f"unknown escape {match[0]}")
            return _SHORT.get(match[5], match[5])
        return match[6]

    def _class(self, text: str) -> Expr:
        is_negated = text.startswith("^")
        marks = list(_ESCAPE.finditer(text[1:] if is_negated else text))
        spans: list[tuple[int, int]] = []
        i = 0
        while i < len(marks):
            low = high = ord(self._character(marks[i]))
            if i + 2 < len(marks) and marks[i + 1][0] == "-":
                high = ord(self._character(marks[i + 2]))
                i += 2
            if high < low:
                raise self._error(f"bad range in [{text}]")
            spans.append((low, high))
            i += 1
        ranges = charset.intersect(charset.union(spans), charset.EVERYTHING)
        ranges = charset.complement(ranges) if is_negated else ranges
        if not ranges:
            raise self._error(f"[{text}] holds no character")
        return Chars(ranges)


def _check(rules: dict[str, Expr]) -> None:
    if "root" not in rules:
        raise EbnfError("there is no rule root")
    for name, expr in rules.items():
        for used in names_in(expr):
            if used not in rules:
                raise EbnfError(f"rule {name} uses {used}, which is not defined")
    empties = _nullable_rules(rules)
    for name, expr in rules.items():
        if _repeats_nothing(expr, empties):
            raise EbnfError(f"rule {name} repeats without end what may be empty")
    _check_recursion(rules, empties)


def _nullable_rules(rules: dict[str, Expr]) -> set[str]:
    users: dict[str, list[str]] = {}
    for name, expr in rules.items():
        for used in set(names_in(expr)):
            users.setdefault(used, []).append(name)
    known: set[str] = set()
    queue = list(rules)
    for name in queue:  # a rule is looked at again once one that it uses may be empty
        if name not in known and _nullable(rules[name], known):
            known.add(name)
            queue.extend(users.get(name, ()))
    return known


def _nullable(expr: Expr, known: set[str]) -> bool:
    match expr:
        case Text(text):
            return not text
        case Ref(name):
            return name in known
        case Seq(parts):
            return all(_nullable(part, known) for part in parts)
        case Alt(options):
            return any(_nullable(option, known) for option in options)
        case Repeat(part, low, _):
            return low == 0 or _nullable(part, known)
        case _:
            return False


def _repeats_nothing(expr: Expr, empties: set[str]) -> bool:
    match expr:
        case Seq(parts) | Alt(parts):
            return any(_repeats_nothing(part, empties) for part in parts)
        case Repeat(part, _, high):
            many = high is None or high > 1
            return (many and _nullable(part, empties)) or _repeats_nothing(part, empties)
        case _:
            return False


def _check_recursion(rules: dict[str, Expr], empties: set[str]) -> None:
    """A rule that can begin with itself behind something empty multiplies parses without end."""
    begins = {name: set(_first(expr, empties, False)) for name, expr in rules.items()}
    knots = _knots({name: {used for used, _ in found} for name, found in begins.items()})
    for name, found in begins.items():
        for used, after_empty in found:
            if knots[used] == knots[name] and (after_empty or name in empties):
                raise EbnfError(f"rule {name} begins with itself and may be empty before that")


def _knots(edges: dict[str, set[str]]) -> dict[str, str]:
    """For each name one that stands for all that lead to it and that it leads to, itself
    included."""
    back: dict[str, set[str]] = {name: set() for name in edges}
    for name, targets in edges.items():
        for target in targets:
            back[target].add(name)
    done: dict[str, None] = {}
    for start in edges:
        path = {start: iter(edges[start])} if start not in done else {}
        while path:
            name, onward = next(reversed(path.items()))
            target = next(onward, "")
            if not target:
                done[name] = None
                del path[name]
            elif target not in done and target not in path:
                path[target] = iter(edges[target])
    found: dict[str, str] = {}
    for start in reversed(done):
        queue = [] if start in found else [start]
        for name in queue:
            if name not in found:
                found[name] = start
                queue.extend(back[name] - found.keys())
    return found


def _first(expr: Expr, empties: set[str], hidden: bool) -> Iterator[tuple[str, bool]]:
    """Rules that `expr` can begin with, and whether something empty stands before them."""
    match expr:
        case Ref(name):
            yield name, hidden
        case Alt(options):
            for option in options:
                yield from _first(option, empties, hidden)
        case Repeat(part):
            yield from _first(part, empties, hidden)
        case Seq(parts):
            for part in parts:
                yield from _first(part, empties, hidden)
                if not _nullable(part, empties):
                    return
                hidden = True
        case _:
            return
