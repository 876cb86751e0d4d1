"""Spells automata and JSON strings as rules.

Owns: how a character stands inside a JSON string, and automata as rules of few characters each.
Must not know: schemas.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from radixserve.grammar import charset, regex, rules
from radixserve.grammar.automaton import Automaton
from radixserve.grammar.charset import Ranges
from radixserve.grammar.rules import EMPTY, Chars, Expr, Ref, Text, alt, repeat, seq

Spelling = Callable[[Ranges], Expr]

_QUOTED = charset.of('"', "\\")
_CONTROL: Ranges = ((0, 0x1F),)
_PLAIN = charset.complement(charset.union((*_QUOTED, *_CONTROL)))
_SHORT = {'"': '"', "\\": "\\", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LONG = charset.intersect(_CONTROL, charset.complement(charset.of(*_SHORT.values())))
_MAX_INLINE = 24
_HEX = charset.of("09", "AF", "af")

# Strings of up to so many characters have a rule for each; longer ones are counted by the engine.
MAX_FLAT = 128
_MAX_ESCAPES = 8

# A JSON string. Its characters and its closing quote stand in one rule: a token that leaves a rule
# is worked out anew in every step, which takes the grammar engine milliseconds. Escapes of
# surrogates come in pairs only.
STRING = Ref("string")
STRING_RULES: dict[str, Expr] = {
    "string": seq(Text('"'), Ref("rest")),
    "rest": seq(
        repeat(Chars(_PLAIN), 0, None), alt(Text('"'), seq(Text("\\"), Ref("escape"), Ref("rest")))
    ),
    "escape": alt(
        Chars(charset.of('"', "\\", "/", "b", "f", "n", "r", "t")),
        seq(Text("u"), Ref("code")),
    ),
    "code": alt(
        seq(Chars(charset.of("09", "AC", "EF", "ac", "ef")), repeat(Chars(_HEX), 3, 3)),
        seq(Chars(charset.of("D", "d")), Chars(charset.of("07")), repeat(Chars(_HEX), 2, 2)),
        seq(
            Chars(charset.of("D", "d")),
            Chars(charset.of("89", "AB", "ab")),
            repeat(Chars(_HEX), 2, 2),
            Text("\\u"),
            Chars(charset.of("D", "d")),
            Chars(charset.of("CF", "cf")),
            repeat(Chars(_HEX), 2, 2),
        ),
    ),
}


def plain(ranges: Ranges) -> Expr:
    """A character as itself."""
    return Chars(ranges)


def in_json(ranges: Ranges) -> Expr:
    """A character inside a JSON string, in its one shortest spelling."""
    options: list[Expr] = []
    if bare := charset.intersect(ranges, _PLAIN):
        options.append(Chars(bare))
    short = [m for m, c in _SHORT.items() if charset.intersect(ranges, charset.of(c))]
    escapes: list[Expr] = [Chars(charset.of(*short))] if short else []
    long = charset.intersect(ranges, _LONG)
    for row in (0, 1):
        codes = [c for low, high in long for c in range(low, high + 1) if c >> 4 == row]
        if codes:
            digits = charset.of(*(f"{code & 15:x}" for code in codes))
            escapes.append(seq(Text(f"u00{row}"), Chars(digits)))
    if escapes:
        options.append(seq(Text("\\"), alt(*escapes)))
    return alt(*options)


def tree(found: regex.Tree, spelling: Spelling) -> Expr:
    """What a regex tree without anchors matches."""
    match found:
        case regex.Chars(ranges):
            return spelling(ranges)
        case regex.Sequence(parts):
            return seq(*(tree(part, spelling) for part in parts))
        case regex.Choice(options):
            return alt(*(tree(option, spelling) for option in options))
        case regex.Repeat(part, low, high):
            return repeat(tree(part, spelling), low, high)
        case _:
            raise ValueError("an anchor inside a pattern")


def is_plain(found: regex.Tree) -> bool:
    """No character of the tree needs an escape in JSON."""
    match found:
        case regex.Chars(ranges):
            return isinstance(in_json(ranges), Chars)
        case regex.Sequence(parts) | regex.Choice(parts):
            return all(map(is_plain, parts))
        case regex.Repeat(part):
            return is_plain(part)
        case _:
            return False


def literal(value: object) -> Text:
    """One JSON value, as json.dumps writes it with its default separators."""
    return Text(json.dumps(value, ensure_ascii=False))


class Speller:
    """Writes automata into a table of rules."""

    def __init__(self, table: dict[str, Expr]) -> None:
        self._table = table
        self._count = 0
        self._known: dict[tuple[Automaton, Spelling, Expr], Expr] = {}

    def string(self, low: int, high: int | None) -> Expr:
        """A JSON string of `low` to `high` characters.

        Above MAX_FLAT characters those with escapes are not all generated: at most _MAX_ESCAPES of
        them, in the last quarter.
        """
        if low == 0 and high is None:
            return STRING
        if (low if high is None else high) <= MAX_FLAT:
            return self._flat(low, high)
        bare = Chars(_PLAIN)
        escape = seq(Text("\\"), Ref("escape"))
        if high is None:
            return seq(Text('"'), repeat(bare, low, low), Ref("rest"))
        each = max(1, high // 4 // _MAX_ESCAPES)
        first = high - each * _MAX_ESCAPES
        part = seq(escape, repeat(bare, 0, each - 1))
        tail = repeat(part, 1, _MAX_ESCAPES)
        plain = repeat(bare, low, high)
        mixed = seq(repeat(bare, min(low, first), first), tail) if low <= first else plain
        return seq(Text('"'), alt(plain, mixed), Text('"'))

    def _flat(self, low: int, high: int | None) -> Expr:
        name = f"q{low}_{'' if high is None else high}_"
        last = low if high is None else high
        if f"{name}0" not in self._table:
            for i in range(last):
                onward = Ref("rest") if i + 1 == last and high is None else Ref(f"{name}{i + 1}")
                options = [Text('"')] if i >= low else []
                self._table[f"{name}{i}"] = alt(
                    *options,
                    seq(Chars(_PLAIN), onward),
                    seq(Text("\\"), Ref("escape"), onward),
                )
            if high is not None:
                self._table[f"{name}{last}"] = Text('"')
        return seq(Text('"'), Ref(f"{name}0"))

    def spell(self, automaton: Automaton, spelling: Spelling, closing: Expr = EMPTY) -> Expr:
        """What `automaton` accepts, each character by `spelling`, then `closing`."""
        key = (automaton, spelling, closing)
        if key not in self._known:
            self._count += 1
            self._known[key] = _Writer(
                automaton, (spelling, closing), f"t{self._count}", self._table
            ).write()
        return self._known[key]


class _Writer:
    def __init__(
        self,
        automaton: Automaton,
        spelling: tuple[Spelling, Expr],
        name: str,
        table: dict[str, Expr],
    ) -> None:
        self._ends = automaton.ends
        self._spelling, self._closing = spelling
        self._name = name
        self._table = table
        self._targets = [_grouped(row) for row in automaton.moves]
        self._shared = self._find_shared()
        self._todo: list[int] = []
        self._named: set[int] = set()

    def _find_shared(self) -> set[int]:
        """States that more than one other state leads to, and the start if any does."""
        sources: dict[int, int] = {0: 1}
        for state, groups in enumerate(self._targets):
            for target in groups:
                if target != state:
                    sources[target] = sources.get(target, 0) + 1
        named = {state for state, n in sources.items() if n > 1}
        for state, groups in enumerate(self._targets):  # a loop over escapes is a recursion
            if state in groups and not isinstance(self._spelling(groups[state]), Chars):
                named.add(state)
        return named

    def write(self) -> Expr:
        if not self._ends:
            return rules.NEVER
        start = self._goto(0, 0)
        while self._todo:
            state = self._todo.pop()
            self._table[self._rule(state)] = self._body(state, 0)
        return start

    def _rule(self, state: int) -> str:
        return f"{self._name}_{state}"

    def _goto(self, state: int, depth: int) -> Expr:
        if state not in self._shared and depth < _MAX_INLINE:
            return self._body(state, depth)
        if state not in self._named:
            self._named.add(state)
            self._todo.append(state)
        return Ref(self._rule(state))

    def _body(self, state: int, depth: int) -> Expr:
        run = self._run(state)
        if len(run) > 2:
            return self._repeated(run, depth)
        groups = self._targets[state]
        options: list[Expr] = [self._closing] if state in self._ends else []
        options += [
            seq(self._spelling(ranges), self._goto(target, depth + 1))
            for target, ranges in groups.items()
            if target != state
        ]
        loop: Expr = EMPTY
        for piece in _pieces(self._spelling(groups[state])) if state in groups else ():
            if isinstance(piece, Chars):
                loop = repeat(piece, 0, None)
            else:
                options.append(seq(piece, self._goto(state, 0)))
        return seq(loop, alt(*options))

    def _run(self, state: int) -> list[int]:
        """States one behind the other, each left by the same characters alone; a counted
        repetition. Once one is an end, all are, and the last leads nowhere."""
        run = [state]
        while len(groups := self._targets[run[-1]]) == 1:
            target, ranges = next(iter(groups.items()))
            first = next(iter(self._targets[state].values()))
            is_plain = isinstance(self._spelling(ranges), Chars)
            if ranges != first or not is_plain or target in self._shared or target == run[-1]:
                break
            run.append(target)
        ends = [s in self._ends for s in run]
        if True in ends:
            first_end = ends.index(True)
            if not all(ends[first_end:]) or self._targets[run[-1]]:
                return run[: first_end + 1]
        return run

    def _repeated(self, run: list[int], depth: int) -> Expr:
        part = self._spelling(next(iter(self._targets[run[0]].values())))
        ends = [s in self._ends for s in run]
        if True in ends and not self._targets[run[-1]]:
            return seq(repeat(part, ends.index(True), len(run) - 1), self._closing)
        size = len(run) - 1
        return seq(repeat(part, size, size), self._goto(run[-1], depth + 1))


def _pieces(expr: Expr) -> tuple[Expr, ...]:
    return expr.options if isinstance(expr, rules.Alt) else (expr,)


def _grouped(row: tuple[tuple[int, int, int], ...]) -> dict[int, Ranges]:
    found: dict[int, list[tuple[int, int]]] = {}
    for low, high, target in row:
        found.setdefault(target, []).append((low, high))
    return {target: charset.union(ranges) for target, ranges in found.items()}
