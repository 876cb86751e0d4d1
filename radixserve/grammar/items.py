"""A grammar's expressions in the form in which they are followed byte by byte.

Owns: characters as automata over the bytes of UTF-8, texts as a shared prefix tree, counted
repetitions, the fewest bytes of each, whether a rule begins with itself. Must not know: outputs,
tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from radixserve.grammar import rules
from radixserve.grammar.charset import Ranges

_CONTINUED = 0x80  # the marks of UTF-8: a byte behind the first
_LEADS = (  # first and last character, bytes, mark of the first byte
    (0, 0x7F, 1, 0),
    (0x80, 0x7FF, 2, 0xC0),
    (0x800, 0xFFFF, 3, 0xE0),
    (0x10000, 0x10FFFF, 4, 0xF0),
)


# b and f come late: behind a backslash they are control characters.
_READABLE = b"acdeghijklmnopqrstuvwxyzbf0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_PRINTABLE = bytes(byte for byte in range(0x21, 0x7F) if byte not in _READABLE)
_OTHERS = bytes(byte for byte in range(0x80, 0x100)) + b" " + bytes(range(0x20)) + b"\x7f"
_ORDER = _READABLE + _PRINTABLE + _OTHERS
_PREFERENCE = [_ORDER.index(byte) for byte in range(256)]


def preference(byte: int) -> int:
    """Lowest for the byte that reads best."""
    return _PREFERENCE[byte]


class Node:
    """A place inside a character. ends: it may be over here. least: fewest bytes to where it is
    over. only: the one byte that can follow, if it is one. shortest: the best of the bytes that
    lead to an end soonest. All nodes other than DONE read at least one more byte."""

    __slots__ = ("_moves", "ends", "least", "only", "shortest")
    least: int

    def __init__(self, moves: dict[int, Node]) -> None:
        self._moves = moves
        nearest = min((node.least for node in moves.values()), default=-1)
        self.ends = not moves
        self.least = nearest + 1
        self.only = next(iter(moves)) if len(moves) == 1 else None
        best = [byte for byte, node in moves.items() if node.least == nearest]
        self.shortest = min(best, key=preference, default=0)

    def after(self, byte: int) -> Node | None:
        return self._moves.get(byte)

    @property
    def tail(self) -> bytes:
        """All that follows to where it is over, if it is one text; else nothing."""
        return b""


DONE = Node({})


class Texts(Node):
    """A place inside one of several texts: sorted, different, and from `low` to `high` all with the
    same first `depth` bytes. What lies behind is made when it is asked for."""

    __slots__ = ("_depth", "_spans", "_texts")

    def __init__(self, texts: list[bytes], low: int, high: int, depth: int) -> None:
        self._texts = texts
        self._depth = depth
        self._spans: dict[int, tuple[int, int]] = {}
        self._moves = {}
        self.ends = len(texts[low]) == depth
        nearest: dict[int, int] = {}
        for i in range(low + self.ends, high):
            byte, size = texts[i][depth], len(texts[i]) - depth
            self._spans[byte] = self._spans.get(byte, (i, i))[0], i + 1
            nearest[byte] = min(size, nearest.get(byte, size))
        shortest = min(nearest.values())
        self.least = 0 if self.ends else shortest
        self.only = next(iter(nearest)) if len(nearest) == 1 else None
        best = [byte for byte, size in nearest.items() if size == shortest]
        self.shortest = min(best, key=preference)

    @property
    def tail(self) -> bytes:
        spans = list(self._spans.values())
        if self.ends or len(spans) > 1 or spans[0][1] > spans[0][0] + 1:
            return b""
        return self._texts[spans[0][0]][self._depth :]

    def forget(self) -> None:
        self._moves = {}

    def after(self, byte: int) -> Node | None:
        found = self._moves.get(byte)
        if found is None and byte in self._spans:
            low, high = self._spans[byte]
            depth = self._depth + 1
            is_over = high == low + 1 and len(self._texts[low]) == depth
            found = DONE if is_over else Texts(self._texts, low, high, depth)
            self._moves[byte] = found
        return found


class Pair:
    __slots__ = ("first", "least", "second")
    least: int

    def __init__(self, first: Item, second: Item) -> None:
        self.first = first
        self.second = second
        self.least = first.least + second.least


class Choice:
    __slots__ = ("least", "options")
    least: int

    def __init__(self, options: tuple[Item, ...]) -> None:
        self.options = options
        self.least = min(option.least for option in options)


class Loop:
    """`part`, from `low` to `high` times; high None is without end."""

    __slots__ = ("_less", "high", "least", "low", "part")
    least: int

    def __init__(self, part: Item, low: int, high: int | None) -> None:
        self.part = part
        self.low = low if part.least else 0  # what may be empty may be left out
        self.high = high
        self.least = part.least * low
        self._less: Loop | None = None

    def less(self) -> Loop | None:
        """What is left of it behind one more part; None for nothing."""
        if self.high == 1:
            return None
        if self.high is None and self.low == 0:
            return self
        if self._less is None:
            high = None if self.high is None else self.high - 1
            self._less = Loop(self.part, max(0, self.low - 1), high)
        return self._less

    def forget(self) -> None:
        self._less = None


class Call:
    """A rule by its name."""

    __slots__ = ("least", "name")
    least: int

    def __init__(self, name: str, least: int) -> None:
        self.name = name
        self.least = least


Item = Node | Pair | Choice | Loop | Call


class Lowered:
    """The rules of a grammar as items, each made when it is first asked for."""

    def __init__(self, grammar: rules.Grammar) -> None:
        self._grammar = grammar
        self._known: dict[str, Item] = {}
        self._grown: list[Loop | Texts] = []

    def rule(self, name: str) -> Item:
        if name not in self._known:
            self._known[name] = self._lower(self._grammar.rules[name])
        return self._known[name]

    def forget(self) -> None:
        """Drop what has been made behind repetitions and texts."""
        for item in self._grown:
            item.forget()

    def _lower(self, expr: rules.Expr) -> Item:
        match expr:
            case rules.Text(text):
                return self._texts([text])
            case rules.Chars(ranges):
                return of_chars(ranges)
            case rules.Ref(name):
                return Call(name, self._grammar.shortest[name])
            case rules.Seq(parts):
                found = self._lower(parts[-1])
                for part in reversed(parts[:-1]):
                    found = Pair(self._lower(part), found)
                return found
            case rules.Alt(options):
                return self._choice(options)
            case rules.Repeat(part, low, high):
                loop = Loop(self._lower(part), low, high)
                self._grown.append(loop)
                return loop

    def _choice(self, options: tuple[rules.Expr, ...]) -> Item:
        texts = [option.text for option in options if isinstance(option, rules.Text)]
        found = [self._lower(option) for option in options if not isinstance(option, rules.Text)]
        if texts:
            found.append(self._texts(texts))
        return found[0] if len(found) == 1 else Choice(tuple(found))

    def _texts(self, texts: list[str]) -> Node:
        found = sorted({text.encode() for text in texts})
        if found == [b""]:
            return DONE
        node = Texts(found, 0, len(found), 0)
        self._grown.append(node)
        return node


@lru_cache(maxsize=64)
def of_chars(ranges: Ranges) -> Node:
    """One character of `ranges`, which hold no surrogates, as bytes of UTF-8."""
    moves: dict[int, Node] = {}
    known: dict[tuple[Ranges, int], Node] = {}
    for first, last, width, mark in _LEADS:
        inside = [(max(low, first), min(high, last)) for low, high in ranges]
        kept = tuple((low, high) for low, high in inside if low <= high)
        moves |= _moves(kept, width, mark, known)
    return Node(moves)


def _moves(
    ranges: Ranges, width: int, mark: int, known: dict[tuple[Ranges, int], Node]
) -> dict[int, Node]:
    """The first of the last `width` bytes of characters, of which `ranges` are the low bits."""
    size = 64 ** (width - 1)
    parts: dict[int, list[tuple[int, int]]] = {}
    for low, high in ranges:
        for value in range(low // size, high // size + 1):
            base = value * size
            span = (max(low, base) - base, min(high, base + size - 1) - base)
            parts.setdefault(value, []).append(span)
    return {mark | value: _behind(tuple(spans), width - 1, known) for value, spans in parts.items()}


def _behind(ranges: Ranges, width: int, known: dict[tuple[Ranges, int], Node]) -> Node:
    if width == 0:
        return DONE
    key = (ranges, width)
    if key not in known:
        known[key] = Node(_moves(ranges, width, _CONTINUED, known))
    return known[key]


def begins_with_itself(grammar: rules.Grammar) -> bool:
    """Some rule can come to itself again before a byte is read."""
    left = {name: set(_first(expr, grammar)) for name, expr in grammar.rules.items()}
    done: set[str] = set()
    for start in grammar.rules:
        path: dict[str, Iterator[str]] = {} if start in done else {start: iter(left[start])}
        while path:
            name, onward = next(reversed(path.items()))
            following = next(onward, None)
            if following is None:
                del path[name]
                done.add(name)
            elif following in path:
                return True
            elif following not in done:
                path[following] = iter(left[following])
    return False


def _first(expr: rules.Expr, grammar: rules.Grammar) -> Iterator[str]:
    """The rules that `expr` can begin with."""
    match expr:
        case rules.Ref(name):
            yield name
        case rules.Alt(options):
            for option in options:
                yield from _first(option, grammar)
        case rules.Repeat(part):
            yield from _first(part, grammar)
        case rules.Seq(parts):
            for part in parts:
                yield from _first(part, grammar)
                if rules.shortest_of(part, grammar.shortest) != 0:
                    return
        case _:
            return
