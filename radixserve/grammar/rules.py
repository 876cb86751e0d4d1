"""Grammars as named rules: the last form before the grammar engine's text.

Owns: the expressions, pruning of what cannot be completed, shortest completions, the text that
xgrammar reads. Must not know: JSON Schema, tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from radixserve.grammar import effort
from radixserve.grammar.charset import Ranges


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set; the empty set never matches."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Seq:
    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of the options; without options it never matches."""

    options: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`high` None is without end."""

    part: Expr
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Ref:
    name: str


Expr = Text | Chars | Seq | Alt | Repeat | Ref
NEVER = Alt(())
EMPTY = Text("")
_FEW = 8


def seq(*parts: Expr) -> Expr:
    """The parts one behind the other, neighbouring texts joined."""
    flat: list[Expr] = []
    for part in parts:
        for piece in part.parts if isinstance(part, Seq) else (part,):
            if piece == NEVER:
                return NEVER
            if isinstance(piece, Text) and flat and isinstance(flat[-1], Text):
                flat[-1] = Text(flat[-1].text + piece.text)
            elif piece != EMPTY:
                flat.append(piece)
    effort.spend(1 + len(flat))
    if not flat:
        return EMPTY
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(*options: Expr) -> Expr:
    """One of the options, each once."""
    flat: dict[Expr, None] = {}
    for option in options:
        for piece in option.options if isinstance(option, Alt) else (option,):
            flat[piece] = None
    effort.spend(1 + len(flat))
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def repeat(part: Expr, low: int, high: int | None) -> Expr:
    if high == 0 or part == EMPTY:
        return EMPTY
    if part == NEVER:
        return EMPTY if low == 0 else NEVER
    return part if (low, high) == (1, 1) else Repeat(part, low, high)


def optional(part: Expr) -> Expr:
    return repeat(part, 0, 1)


@dataclass(frozen=True, slots=True)
class Grammar:
    """rules: by name; the text starts in "root". shortest: by rule, the fewest bytes it takes."""

    rules: dict[str, Expr]
    shortest: dict[str, int]

    @property
    def is_empty(self) -> bool:
        return "root" not in self.shortest


def finish(rules: dict[str, Expr]) -> Grammar:
    """A grammar of the rules that root needs, without what can never be completed."""
    shortest = _shortest(rules)
    kept: dict[str, Expr] = {}
    queue = ["root"] if "root" in shortest else []
    for name in queue:
        if name not in kept:
            kept[name] = _pruned(rules[name], shortest)
            queue.extend(names_in(kept[name]))
    return Grammar(kept, {name: shortest[name] for name in kept})


def names_in(expr: Expr) -> Iterator[str]:
    """The rules that `expr` uses."""
    match expr:
        case Ref(name):
            yield name
        case Seq(parts) | Alt(parts):
            for part in parts:
                yield from names_in(part)
        case Repeat(part):
            yield from names_in(part)
        case _:
            return


def _shortest(rules: dict[str, Expr]) -> dict[str, int]:
    """Fewest bytes by rule; rules that never end are absent. Rules are visited again only when one
    that they use has become shorter."""
    users: dict[str, list[str]] = {}
    for name, expr in rules.items():
        for used in set(names_in(expr)):
            users.setdefault(used, []).append(name)
    known: dict[str, int] = {}
    queue = list(rules)
    waiting = set(queue)
    for name in queue:
        waiting.discard(name)
        size = shortest_of(rules[name], known)
        if size is not None and size < known.get(name, size + 1):
            known[name] = size
            for user in users.get(name, ()):
                if user not in waiting:
                    waiting.add(user)
                    queue.append(user)
    return known


def shortest_of(expr: Expr, known: dict[str, int]) -> int | None:
    """Fewest bytes that `expr` takes, given those of the rules; None when it cannot end."""
    match expr:
        case Text(text):
            return len(text.encode())
        case Chars(ranges):
            return len(chr(ranges[0][0]).encode()) if ranges else None
        case Ref(name):
            return known.get(name)
        case Seq(parts):
            sizes = [shortest_of(part, known) for part in parts]
            return None if None in sizes else sum(size for size in sizes if size is not None)
        case Alt(options):
            ends = [shortest_of(option, known) for option in options]
            return min((size for size in ends if size is not None), default=None)
        case Repeat(part, low, _):
            size = shortest_of(part, known) if low else 0
            return None if size is None else size * low


def _pruned(expr: Expr, known: dict[str, int]) -> Expr:
    match expr:
        case Ref(name):
            return expr if name in known else NEVER
        case Chars(ranges):
            return expr if ranges else NEVER
        case Seq(parts):
            return seq(*(_pruned(part, known) for part in parts))
        case Alt(options):
            kept = [_pruned(option, known) for option in options]
            return alt(*(option for option in kept if option != NEVER))
        case Repeat(part, low, high):
            return repeat(_pruned(part, known), low, high)
        case _:
            return expr


def ebnf(grammar: Grammar) -> str:
    """The text that xgrammar reads: one rule a line."""
    return "".join(f"{name} ::= {_spelled(expr)}\n" for name, expr in grammar.rules.items())


def _spelled(expr: Expr) -> str:
    match expr:
        case Text(text):
            return '"' + "".join(map(_escaped, text)) + '"'
        case Chars(ranges):
            return "[" + "".join(map(_range, ranges)) + "]"
        case Ref(name):
            return name
        case Seq(parts):
            return "(" + " ".join(map(_spelled, parts)) + ")"
        case Alt(options):
            return "(" + " | ".join(map(_spelled, options)) + ")"
        case Repeat(Chars(ranges), low, high) if max(low, high or 0) > _FEW:
            return _all_but(ranges) + _bounds(low, high)
        case Repeat(part, low, high):
            inner = _spelled(part)
            atom = inner if isinstance(part, Chars | Ref) else f"({inner})"
            return atom + _bounds(low, high)


def _all_but(ranges: Ranges) -> str:
    """A class by what is not in it: the only kind that the grammar engine counts quickly."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), 0x10FFFF]
    gaps = [(start, end) for start, end in zip(starts, ends) if start <= end]
    return "[^" + "".join(map(_range, gaps)) + "]"


def _bounds(low: int, high: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
    return short or "{" + f"{low},{'' if high is None else high}" + "}"


def _range(span: tuple[int, int]) -> str:
    low, high = span
    return _escaped(chr(low)) if low == high else f"{_escaped(chr(low))}-{_escaped(chr(high))}"


def _escaped(char: str) -> str:
    """Letters, digits and blanks as they are, the rest as an escape that literals and classes
    share."""
    if char.isascii() and (char.isalnum() or char == " "):
        return char
    code = ord(char)
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
