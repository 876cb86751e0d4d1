"""Spells automata and JSON strings as rules.

Owns: how a character stands inside a JSON string, and automata as rules of few characters each.
Must not know: schemas.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from radixserve.grammar import charset, effort, regex, rules
from radixserve.grammar.automaton import Automaton
from radixserve.grammar.charset import Ranges
from radixserve.grammar.rules import EMPTY, Chars, Expr, Ref, Text, alt, repeat, seq


class Words(NamedTuple):
    true: str
    false: str
    null: str


JSON_WORDS = Words("true", "false", "null")
PYTHON_WORDS = Words("True", "False", "None")

Spelling = Callable[[Ranges], Expr]

_QUOTED = charset.of('"', "\\")
_CONTROL: Ranges = ((0, 0x1F),)
_PLAIN = charset.complement(charset.union((*_QUOTED, *_CONTROL)))
_SHORT = {'"': '"', "\\": "\\", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LONG = charset.intersect(_CONTROL, charset.complement(charset.of(*_SHORT.values())))
_MAX_INLINE = 24
_HEX = charset.of("09", "AF", "af")

# Strings of up to so many characters have a rule for each; longer ones are counted by the engine.
MAX_FLAT = 32
# How many units a longer one is measured in, and one above _ABOVE characters; how many units a
# stretch without escapes may take.
_UNITS = 16
_UNITS_ABOVE = 32
_ABOVE = 512
_STRETCHES = (1, 2, 4, 8, 16, 32)

# A JSON string. Its characters and its closing quote stand in one rule: a token that leaves a rule
# is worked out anew in every step, which takes the grammar engine milliseconds. Escapes of
# surrogates come in pairs only.
_ESCAPED = ('"', "\\", "b", "f", "n", "r", "t")
STRING = Ref("string")
STRING_RULES: dict[str, Expr] = {
    "string": seq(Text('"'), Ref("rest")),
    "rest": seq(
        repeat(Chars(_PLAIN), 0, None), alt(Text('"'), seq(Text("\\"), Ref("escape"), Ref("rest")))
    ),
    "escape": alt(
        Chars(charset.of(*_ESCAPED, "/")),
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
# In Python a backslash before a slash is a character of its own.
PYTHON_STRING_RULES: dict[str, Expr] = {
    **STRING_RULES,
    "escape": alt(Chars(charset.of(*_ESCAPED)), seq(Text("u"), Ref("code"))),
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


def literal(value: object, words: Words = JSON_WORDS) -> Text:
    """One JSON value, as json.dumps writes it with its default separators, but for the words."""
    return Text(_written(value, words))


def _written(value: object, words: Words) -> str:
    match value:
        case dict():
            pairs = (f"{_written(k, words)}: {_written(v, words)}" for k, v in value.items())
            return "{" + ", ".join(pairs) + "}"
        case list():
            return "[" + ", ".join(_written(item, words) for item in value) + "]"
        case bool():
            return words.true if value else words.false
        case None:
            return words.null
        case _:
            return json.dumps(value, ensure_ascii=False)


class Speller:
    """Writes automata into a table of rules."""

    def __init__(self, table: dict[str, Expr]) -> None:
        self._table = table
        self._count = 0
        self._known: dict[tuple[Automaton, Spelling, Expr], Expr] = {}

    def string(self, low: int, high: int | None) -> Expr:
        """A JSON string of `low` to `high` characters.

        Above MAX_FLAT characters not all with escapes are generated: the first `low` characters
        hold none, and each stretch up to an escape is rounded up to some units of length.
        """
        if low == 0 and high is None:
            return STRING
        if (low if high is None else high) <= MAX_FLAT:
            return seq(Text('"'), self._flat(low, high))
        if high is None:
            return seq(Text('"'), self._open(low))
        return seq(Text('"'), self._counted(low, high))

    def _flat(self, low: int, high: int | None) -> Expr:
        """The rest of a string, with a rule for each character, which longer ones share."""
        for i in range(low if high is None else high + 1):
            need, left = max(0, low - i), None if high is None else high - i
            name = _flat_name(need, left)
            if name in self._table:
                break
            options: list[Expr] = [] if need else [Text('"')]
            if left != 0:
                onward = Ref(_flat_name(max(0, need - 1), None if left is None else left - 1))
                options.append(seq(Chars(_PLAIN), onward))
                options.append(seq(Text("\\"), Ref("escape"), onward))
            self._table[name] = alt(*options)
        return Ref(_flat_name(low, high))

    # The grammar engine counts a repetition quickly where characters, written as all but some, are
    # followed by a text; anything else behind them costs it a state for each character. So every
    # end that a stretch of characters may have is an alternative with a count of its own.

    def _open(self, low: int) -> Expr:
        stretch = repeat(Chars(_PLAIN), low, None)
        escaped = seq(stretch, Text("\\"), Ref("escape"), Ref("rest"))
        return self._once(f"o{low}", alt(seq(stretch, Text('"')), escaped))

    def _counted(self, low: int, high: int) -> Expr:
        unit = 1
        while high > unit * (_UNITS if high <= _ABOVE else _UNITS_ABOVE):
            unit *= 2
        for units in range(high // unit):
            self._ladder(unit, units, 0, units * unit, f"l{unit}_{units}")
        return self._ladder(unit, high // unit, low, high, f"c{low}_{high}")

    def _ladder(self, unit: int, units: int, low: int, high: int, name: str) -> Expr:
        """The rest of a string: `low` to `high` characters, `units` of length if it has escapes."""
        options: list[Expr] = [seq(repeat(Chars(_PLAIN), low, high), Text('"'))]
        least = 0
        for size in _STRETCHES:
            most = size * unit - 1
            if size <= units and low <= most:
                start = max(low, least)
                escaped = seq(repeat(Chars(_PLAIN), start, most), Text("\\"), Ref("escape"))
                stretch = self._once(f"e{start}_{most}", escaped)
                options.append(seq(stretch, Ref(f"l{unit}_{units - size}")))
            least = most + 1
        return self._once(name, alt(*options))

    def _once(self, name: str, expr: Expr) -> Ref:
        self._table[name] = expr
        return Ref(name)

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
        effort.spend(sum(20 + 4 * len(row) for row in automaton.moves))
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


def _flat_name(need: int, left: int | None) -> str:
    if left is None:
        return f"q{need}_" if need else "rest"
    return f"q{need}_{left}"


def _pieces(expr: Expr) -> tuple[Expr, ...]:
    return expr.options if isinstance(expr, rules.Alt) else (expr,)


def _grouped(row: tuple[tuple[int, int, int], ...]) -> dict[int, Ranges]:
    found: dict[int, list[tuple[int, int]]] = {}
    for low, high, target in row:
        found.setdefault(target, []).append((low, high))
    return {target: charset.union(ranges) for target, ranges in found.items()}
