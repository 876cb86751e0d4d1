"""Objects and arrays of one alternative as rules.

Owns: order, presence and number of members. Must not know: how the schema of a member is worked
out.

An object keeps the order in which its properties are declared and may leave out optional ones.
Other names appear only where additionalProperties or patternProperties gives them a schema, or
where no name is declared at all. Likewise items behind prefixItems appear only where `items` speaks
about them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from radixserve.grammar.rules import (
    EMPTY,
    NEVER,
    Expr,
    Ref,
    Text,
    alt,
    optional,
    repeat,
    seq,
)
from radixserve.grammar.spell import JSON_WORDS, PYTHON_WORDS, Words

MAX_STATES = 4096


@dataclass(frozen=True, slots=True)
class Layout:
    """The punctuation between values."""

    comma: Expr
    colon: Expr
    opened: Expr  # behind an opening bracket
    after: Expr  # behind a member or item
    words: Words = JSON_WORDS


FIXED = Layout(Text(", "), Text(": "), EMPTY, EMPTY)
_BLANKS = Ref("blanks")
BOUNDED = Layout(
    seq(Text(","), _BLANKS), seq(_BLANKS, Text(":"), _BLANKS), opened=_BLANKS, after=_BLANKS
)

# A value as Python writes it.
PYTHON = Layout(Text(", "), Text(": "), EMPTY, EMPTY, PYTHON_WORDS)


@dataclass(frozen=True, slots=True)
class Member:
    expr: Expr
    is_required: bool


class TooManyStates(ValueError):
    """Counting the members takes more than MAX_STATES rules."""


class Members:
    """A list of members in fixed order, then any number of `more`, with bounds on their number.

    Rules are named `name` and a number, and put into `table`.
    """

    def __init__(
        self, members: list[Member], more: Expr, size: tuple[int, int | None], layout: Layout
    ) -> None:
        self._members = members
        self._more = more
        self._low, self._high = size
        self._layout = layout
        required = sum(member.is_required for member in members)
        total = None if more != NEVER else len(members)
        bound_low = self._low > required
        bound_high = self._high is not None and (total is None or total > self._high)
        if bound_high:
            assert self._high is not None
            self._cap = self._high
        else:
            self._cap = max(1, self._low if bound_low else 1)
        self._counts_high = bound_high
        self._low = self._low if bound_low else 0

    def write(self, name: str, table: dict[str, Expr]) -> Expr:
        """The members without brackets. Raises TooManyStates."""
        n = len(self._members)
        if (n + 1) * (self._cap + 1) > MAX_STATES and self._members:
            raise TooManyStates(f"counting {n} members up to {self._cap} takes too many rules")
        row = {count: self._tail(count) for count in range(self._cap + 1)} if n else {}
        if not n:
            return self._tail(0)
        for i in range(n - 1, -1, -1):
            row = {
                count: self._step(self._members[i], count, row) for count in range(self._cap + 1)
            }
            if i % 2 == 0 or self._cap > 1:
                row = self._put(row, f"{name}_{i}", table)
        return row[0]

    def _put(self, row: dict[int, Expr], name: str, table: dict[str, Expr]) -> dict[int, Expr]:
        out: dict[int, Expr] = {}
        for count, expr in row.items():
            if isinstance(expr, Ref) or expr in (EMPTY, NEVER):
                out[count] = expr
                continue
            table[f"{name}_{count}"] = expr
            out[count] = Ref(f"{name}_{count}")
        return out

    def _step(self, member: Member, count: int, rest: dict[int, Expr]) -> Expr:
        """Member, then the rest, when `count` members stand before it."""
        full = self._counts_high and count == self._cap
        following = min(count + 1, self._cap)
        taken: Expr = NEVER
        piece = seq(self._layout.comma, member.expr) if count else member.expr
        if not full:
            if following == count and not member.is_required:
                return seq(optional(piece), rest[count])
            taken = seq(piece, rest[following])
        return taken if member.is_required else alt(taken, rest[count])

    def _tail(self, count: int) -> Expr:
        low = max(0, self._low - count)
        high = None if not self._counts_high else self._cap - count
        if self._more == NEVER or (high is not None and high < low):
            return EMPTY if low == 0 else NEVER
        if count:
            return repeat(seq(self._layout.comma, self._more), low, high)
        if high == 0:
            return EMPTY
        others = repeat(
            seq(self._layout.comma, self._more), max(0, low - 1), None if high is None else high - 1
        )
        some = seq(self._more, others)
        return some if low else optional(some)


def bracketed(left: str, inner: Expr, right: str, layout: Layout) -> Expr:
    """`inner`, whose members bring what stands behind them, between brackets."""
    return seq(Text(left), layout.opened, inner, Text(right))


def containing(
    spans: tuple[Expr, Expr],
    items: tuple[int, int | None],
    found: tuple[int, int | None],
    layout: Layout,
    put: Callable[[str, Expr], Ref],
    name: str,
) -> Expr:
    """Items of which `found` many are of the counted kind.

    spans: an item that does not count (or need not), an item that counts. put: adds a rule.
    """
    other, counted = spans
    low, high = items
    most = high if high is not None else max(low, 1)  # saturates; 0 is the empty list alone
    enough = found[1] if found[1] is not None else found[0]
    if (most + 1) * (enough + 1) > MAX_STATES:
        raise TooManyStates("counting the items takes too many rules")

    def rule(n: int, c: int) -> str:
        return f"{name}_{n}_{c}"

    for n in range(most + 1):
        for c in range(enough + 1):
            options: list[Expr] = [EMPTY] if n >= low and c >= found[0] else []
            if high is None or n < high:
                comma = layout.comma if n else EMPTY
                onward = min(n + 1, most)
                options.append(seq(comma, other, Ref(rule(onward, c))))
                if found[1] is None or c < found[1]:
                    options.append(seq(comma, counted, Ref(rule(onward, min(c + 1, enough)))))
            put(rule(n, c), alt(*options))
    return Ref(rule(0, 0))


def permutations(
    values: list[Expr],
    size: tuple[int, int | None],
    layout: Layout,
    put: Callable[[str, Expr], Ref],
    name: str,
) -> Expr:
    """Each value at most once, in any order."""
    high = len(values) if size[1] is None else min(size[1], len(values))
    for used in range(1 << len(values)):
        count = used.bit_count()
        if count > high:
            continue
        options: list[Expr] = [EMPTY] if count >= size[0] else []
        if count < high:
            for i, value in enumerate(values):
                if not used >> i & 1:
                    piece = seq(layout.comma, value) if used else value
                    options.append(seq(piece, Ref(f"{name}_{used | 1 << i}")))
        put(f"{name}_{used}", alt(*options))
    return Ref(f"{name}_0")


def tuple_items(
    places: list[Expr],
    rest: Expr,
    size: tuple[int, int | None],
    layout: Layout,
    put: Callable[[str, Expr], Ref],
    name: str,
) -> Expr:
    """Items by place, then `rest`; nothing may be left out before something that is there.

    put: adds a rule, so that many places are no deep expression.
    """
    low, high = size
    count = len(places) if high is None else min(len(places), high)
    tail: Expr = EMPTY
    if high is None or high > count:
        more = None if high is None else high - count
        inner = rest if count == 0 else seq(layout.comma, rest)
        if count:
            tail = repeat(inner, max(0, low - count), more)
        else:
            others = repeat(
                seq(layout.comma, rest), max(0, low - 1), None if more is None else more - 1
            )
            some = seq(rest, others)
            tail = some if low else optional(some)
    if low > count and tail == EMPTY:
        return NEVER
    for i in range(count - 1, -1, -1):
        piece = seq(layout.comma, places[i]) if i else places[i]
        tail = seq(piece, tail)
        if i >= low:
            tail = optional(tail)
        if i % 8 == 7 and tail != NEVER:
            tail = put(f"{name}_{i}", tail)
    return tail
