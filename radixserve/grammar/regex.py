"""Reads regular expressions.

Owns: the supported syntax and its meaning as a tree. Must not know: automata, JSON.

Supported: literals, ., classes with ranges and \\d \\w \\s (and capitals), groups (capturing,
non-capturing, named: all alike), |, ?, *, +, {m}, {m,}, {m,n} (a lazy ? behind one changes nothing,
matching asks only whether), ^ and $ anywhere, \\n \\r \\t \\f \\v \\0 \\xHH \\uHHHH \\u{H} \\cX and
escaped punctuation; look-aheads right behind a leading ^ (split_heads). Refused: other look-around,
back-references, flags, \\b, \\p, possessive and atomic groups.

Readers disagree about some characters (does \\d hold Arabic digits?), so a tree is read `narrow`:
it matches only what every reader would match, or wide: all that some reader would.
"""

from __future__ import annotations

from dataclasses import dataclass

from radixserve.grammar import charset
from radixserve.grammar.charset import Ranges

MAX_REPEAT = 5000
_MAX_DEPTH = 60


class RegexError(ValueError):
    """The pattern cannot be read; says what and where."""


@dataclass(frozen=True, slots=True)
class Chars:
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`high` None is without end."""

    part: Tree
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Edge:
    """^ (`end` false) or $."""

    end: bool


Tree = Chars | Sequence | Choice | Repeat | Edge

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_LINE_ENDS = charset.of("\n", "\r", "\u2028", "\u2029")


def split_heads(pattern: str) -> tuple[list[tuple[str, bool]], str]:
    """The look-aheads that stand right behind a leading ^ (pattern, is negative), and the rest.

    Raises RegexError for alternatives beside them, which they would not speak about.
    """
    heads: list[tuple[str, bool]] = []
    while pattern.startswith(("^(?=", "^(?!")):
        end = _closing(pattern, 1)
        heads.append((f"^(?:{pattern[4:end]})", pattern[3] == "!"))
        pattern = "^" + pattern[end + 1 :]
    if heads and isinstance(parse(pattern), Choice):
        raise RegexError("look-ahead beside alternatives is not supported")
    return heads, pattern


def _closing(pattern: str, start: int) -> int:
    """Where the group that opens at `start` closes."""
    depth, at, in_class = 0, start, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        else:
            depth += (char == "(") - (char == ")")
            if depth == 0:
                return at
        at += 1
    raise RegexError("unfinished group")


def parse(pattern: str, *, narrow: bool = True) -> Tree:
    """The tree of `pattern`. Raises RegexError."""
    reader = _Reader(pattern, narrow)
    tree = reader.choice(0)
    if not reader.at_end():
        raise reader.error("unmatched )")
    return tree


class _Reader:
    def __init__(self, pattern: str, narrow: bool) -> None:
        self._text = pattern
        self._at = 0
        self._narrow = narrow

    def error(self, what: str) -> RegexError:
        return RegexError(f"{what} at offset {self._at} of the pattern")

    def at_end(self) -> bool:
        return self._at >= len(self._text)

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        if self._peek(text):
            self._at += len(text)
            return True
        return False

    def _next(self) -> str:
        if self.at_end():
            raise self.error("unexpected end")
        self._at += 1
        return self._text[self._at - 1]

    def choice(self, depth: int) -> Tree:
        if depth > _MAX_DEPTH:
            raise self.error(f"groups nested deeper than {_MAX_DEPTH}")
        options = [self._sequence(depth)]
        while self._take("|"):
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, depth: int) -> Tree:
        parts: list[Tree] = []
        while not (self.at_end() or self._peek("|") or self._peek(")")):
            parts.append(self._repeats(self._atom(depth)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeats(self, part: Tree) -> Tree:
        bounds = self._bounds()
        if bounds is None:
            return part
        if isinstance(part, Edge):
            raise self.error("an anchor cannot be repeated")
        if self._peek("+") or self._peek("*") or self._peek("{"):
            raise self.error("possessive or doubled repetition is not supported")
        self._take("?")
        return Repeat(part, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for mark, low, high in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._take(mark):
                return low, high
        if not self._take("{"):
            return None
        first = self._digits()
        if first is None:
            raise self.error("{ must be escaped where it is not a repetition")
        second = self._digits() if (comma := self._take(",")) else first
        if not self._take("}"):
            raise self.error("unfinished repetition")
        if max(first, second or 0) > MAX_REPEAT:
            raise self.error(f"repetition above {MAX_REPEAT}")
        if comma and second is not None and second < first:
            raise self.error("repetition bounds in the wrong order")
        return first, second

    def _digits(self) -> int | None:
        start = self._at
        while not self.at_end() and self._text[self._at] in "0123456789":
            self._at += 1
        if self._at - start > 6:
            raise self.error(f"repetition above {MAX_REPEAT}")
        return int(self._text[start : self._at]) if self._at > start else None

    def _atom(self, depth: int) -> Tree:
        if self._take("("):
            return self._group(depth)
        if self._take("["):
            return Chars(self._class())
        if self._take("^"):
            return Edge(end=False)
        if self._take("$"):
            return Edge(end=True)
        if self._take("."):
            ends = _LINE_ENDS if self._narrow else charset.of("\n")
            return Chars(charset.complement(ends))
        if self._text[self._at] in "*+?{":
            raise self.error("nothing to repeat")
        if self._take("\\"):
            return Chars(self._escape(self._narrow))
        return Chars(_single(self._character()))

    def _character(self) -> str:
        char = self._next()
        if 0xD800 <= ord(char) <= 0xDFFF:
            raise self.error("a lone surrogate")
        return char

    def _group(self, depth: int) -> Tree:
        if self._take("?"):
            if self._take("<") or self._take("P<"):
                self._group_name()
            elif not self._take(":"):
                raise self.error("look-around, flags and atomic groups are not supported")
        tree = self.choice(depth + 1)
        if not self._take(")"):
            raise self.error("unfinished group")
        return tree

    def _group_name(self) -> None:
        if self._peek("=") or self._peek("!"):
            raise self.error("look-behind is not supported")
        name = ""
        while not self._take(">"):
            name += self._next()
        if not name.isidentifier():
            raise self.error(f"group name {name!r}")

    def _escape(self, narrow: bool) -> Ranges:
        char = self._next()
        if char in "dws":
            return _category(char, narrow)
        if char in "DWS":
            return charset.complement(_category(char.lower(), not narrow))
        if char in _ESCAPES:
            if char == "0" and not self.at_end() and self._text[self._at].isdigit():
                raise self.error("octal escapes are not supported")
            return _single(_ESCAPES[char])
        if char in "xuc":
            return _single(self._coded(char))
        if char.isalnum() or char == "_":
            raise self.error(f"\\{char} is not supported")
        return _single(char)

    def _coded(self, kind: str) -> str:
        if kind == "c":
            letter = self._next()
            if not ("a" <= letter.lower() <= "z"):
                raise self.error("\\c needs a letter")
            return chr(ord(letter) % 32)
        if kind == "u" and self._take("{"):
            digits = ""
            while not self._take("}"):
                digits += self._next()
        else:
            digits = "".join(self._next() for _ in range(2 if kind == "x" else 4))
        code = self._hex(digits)
        if 0xD800 <= code <= 0xDBFF and self._take("\\u"):
            low = self._hex("".join(self._next() for _ in range(4)))
            if 0xDC00 <= low <= 0xDFFF:
                return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
        if 0xD800 <= code <= 0xDFFF:
            raise self.error("a lone surrogate")
        return chr(code)

    def _hex(self, digits: str) -> int:
        if not digits or len(digits) > 6 or any(d not in "0123456789abcdefABCDEF" for d in digits):
            raise self.error(f"bad character code {digits!r}")
        code = int(digits, 16)
        if code > 0x10FFFF:
            raise self.error(f"no such character {digits!r}")
        return code

    def _class(self) -> Ranges:
        negated = self._take("^")
        narrow = self._narrow != negated
        found: list[tuple[int, int]] = []
        if self._peek("]"):
            raise self.error("an empty class, or ] not escaped in one")
        while not self._take("]"):
            if self._peek("[") or self._peek("--") or self._peek("&&") or self._peek("~~"):
                raise self.error("escape [ and doubled - & ~ inside a class")
            found.extend(self._class_item(narrow))
        ranges = charset.intersect(charset.union(found), charset.EVERYTHING)
        return charset.complement(ranges) if negated else ranges

    def _class_item(self, narrow: bool) -> Ranges:
        low = self._class_part(narrow)
        dash = self._peek("-") and not self._text.startswith("-]", self._at)
        if not dash:
            return low
        self._take("-")
        high = self._class_part(narrow)
        if not (_is_single(low) and _is_single(high)) or high[0][0] < low[0][0]:
            raise self.error("bad range in a class")
        return ((low[0][0], high[0][0]),)

    def _class_part(self, narrow: bool) -> Ranges:
        if not self._take("\\"):
            return _single(self._character())
        return _single("\b") if self._take("b") else self._escape(narrow)


def _single(char: str) -> Ranges:
    return ((ord(char), ord(char)),)


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _category(letter: str, narrow: bool) -> Ranges:
    """\\d, \\w or \\s: what every reader agrees on, or all that some reader counts."""
    if narrow:
        return {"d": charset.DIGIT, "w": charset.WORD, "s": charset.SPACE}[letter]
    wide = {"d": charset.unicode_digit, "w": charset.unicode_word, "s": charset.unicode_space}
    return wide[letter]()


def whole(tree: Tree) -> Tree | None:
    """What stands between ^ and $ of a pattern whose only anchors these are, or None."""
    match tree:
        case Sequence((Edge(end=False), *parts, Edge(end=True))) if not any(map(_anchored, parts)):
            return Sequence(tuple(parts))
        case _:
            return None


def _anchored(tree: Tree) -> bool:
    match tree:
        case Edge():
            return True
        case Sequence(parts) | Choice(parts):
            return any(map(_anchored, parts))
        case Repeat(part):
            return _anchored(part)
        case _:
            return False


def lengths(tree: Tree) -> tuple[int, int | None]:
    """Fewest and most characters; None where there is no most."""
    match tree:
        case Chars():
            return 1, 1
        case Sequence(parts):
            sizes = [lengths(part) for part in parts]
            highs = [high for _, high in sizes if high is not None]
            return sum(low for low, _ in sizes), sum(highs) if len(highs) == len(sizes) else None
        case Choice(options):
            sizes = [lengths(option) for option in options]
            highs = [high for _, high in sizes if high is not None]
            return min(low for low, _ in sizes), max(highs) if len(highs) == len(sizes) else None
        case Repeat(part, low, high):
            least, most = lengths(part)
            return least * low, None if high is None or most is None else most * high
        case _:
            return 0, 0


def is_flat(tree: Tree) -> bool:
    """Without anchors, and no repetition stands inside another: matching it keeps few states."""
    return not _anchored(tree) and _is_flat(tree)


def _is_flat(tree: Tree) -> bool:
    match tree:
        case Sequence(parts) | Choice(parts):
            return all(map(_is_flat, parts))
        case Repeat(part):
            return not _repeats(part)
        case _:
            return True


def _repeats(tree: Tree) -> bool:
    match tree:
        case Sequence(parts) | Choice(parts):
            return any(map(_repeats, parts))
        case Repeat():
            return True
        case _:
            return False
