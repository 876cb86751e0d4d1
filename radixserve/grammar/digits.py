"""Automata over the digits of numbers.

Owns: ranges and multiples, spelled in one canonical form: an optional minus (never before a zero),
no leading zeros, a fraction of bounded length, no exponent. Must not know: JSON Schema.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction

from radixserve.grammar import automaton
from radixserve.grammar.automaton import Automaton

INTEGER_DIGITS = 18  # every such integer fits 63 bits
DECIMAL_DIGITS = 15  # in all, so that two different texts are two different doubles
MAX_DIVISOR = 1000

_ZERO, _POINT, _MINUS = ord("0"), ord("."), ord("-")
_Found = list[tuple[int, int, Hashable]]
_Rest = tuple[int, int | None]  # remainder of what was read, places read (None before the point)


@dataclass(frozen=True, slots=True)
class Bounds:
    """None is no bound."""

    low: Fraction | None = None
    high: Fraction | None = None
    without_low: bool = False
    without_high: bool = False

    @property
    def is_open(self) -> bool:
        return self.low is None and self.high is None

    def holds(self, value: Fraction) -> bool:
        if self.low is not None and (value < self.low or (self.without_low and value == self.low)):
            return False
        return self.high is None or not (
            value > self.high or (self.without_high and value == self.high)
        )

    def mirrored(self) -> Bounds:
        """The bounds of -x."""
        low = None if self.high is None else -self.high
        high = None if self.low is None else -self.low
        return Bounds(low, high, self.without_high, self.without_low)

    def tightened(self, other: Bounds) -> Bounds:
        """What both allow."""
        high = self.mirrored()._raised(other.mirrored()).mirrored()
        low = self._raised(other)
        return Bounds(low.low, high.high, low.without_low, high.without_high)

    def _raised(self, other: Bounds) -> Bounds:
        mine, theirs = self.low, other.low
        if theirs is None or (mine is not None and mine > theirs):
            return self
        equal = mine == theirs
        return Bounds(theirs, self.high, other.without_low or (equal and self.without_low))


def integers(bounds: Bounds) -> Automaton:
    """Every integer of at most INTEGER_DIGITS digits within `bounds`."""
    return _signed(bounds, INTEGER_DIGITS, 0)


def decimals(bounds: Bounds) -> Automaton:
    """Numbers within `bounds` of at most DECIMAL_DIGITS digits."""
    sizes = [len(str(abs(int(b)))) for b in (bounds.low, bounds.high) if b is not None]
    whole = max([*sizes, 1]) if len(sizes) == 2 else max([10, *(size + 3 for size in sizes)])
    whole = min(DECIMAL_DIGITS, whole)
    return _signed(bounds, whole, DECIMAL_DIGITS - whole)


def multiples(divisor: Fraction) -> Automaton:
    """Texts of digits, with sign and point, whose value is a multiple of `divisor`, a decimal above
    0.

    Raises automaton.TooLarge above MAX_DIVISOR units of the divisor's last place.
    """
    places = 0
    while (divisor * 10**places).denominator != 1:
        places += 1
        if places > DECIMAL_DIGITS:
            raise automaton.TooLarge(f"a divisor of more than {DECIMAL_DIGITS} places")
    unit = int(divisor * 10**places)
    if unit > MAX_DIVISOR:
        raise automaton.TooLarge(f"a divisor of more than {MAX_DIVISOR} units of its last place")

    last = max(places, 1)  # places behind the divisor's own hold zeros

    def step(state: _Rest) -> tuple[list[tuple[int, int, _Rest]], bool]:
        rest, used = state
        found: list[tuple[int, int, _Rest]] = []
        if used is None:
            found = [(_ZERO + d, _ZERO + d, ((rest * 10 + d) % unit, None)) for d in range(10)]
            found += [(_MINUS, _MINUS, (rest, None)), (_POINT, _POINT, (rest, 0))]
        elif used < places:
            after = used + 1
            found = [(_ZERO + d, _ZERO + d, ((rest * 10 + d) % unit, after)) for d in range(10)]
        else:
            found = [(_ZERO, _ZERO, (rest, last))]
        missing = max(0, places - (used or 0))
        return found, used != 0 and rest * 10**missing % unit == 0

    start: _Rest = (0, None)
    return automaton.explore(start, step)


def broken() -> Automaton:
    """Numbers that are no integers."""
    return automaton.from_regex("-?[0-9]+[.][0-9]*[1-9][0-9]*", search=False)


def _signed(bounds: Bounds, whole: int, fraction: int) -> Automaton:
    plus = _Magnitudes(_at_least_zero(bounds, without=False), whole, fraction).build()
    minus = _Magnitudes(_at_least_zero(bounds.mirrored(), without=True), whole, fraction).build()
    moves: list[list[tuple[int, int, int]]] = [[]]
    ends: set[int] = set()
    for part, is_negative in ((plus, False), (minus, True)):
        if part.is_empty:
            continue
        offset = len(moves)
        rows = [[(a, b, t + offset) for a, b, t in row] for row in part.moves]
        moves.extend(rows)
        moves[0].extend([(_MINUS, _MINUS, offset)] if is_negative else rows[0])
        ends |= {end + offset for end in part.ends}
    return automaton.minimal(moves, ends)


def _at_least_zero(bounds: Bounds, *, without: bool) -> Bounds:
    return bounds.tightened(Bounds(Fraction(0), None, without))


class _Magnitudes:
    """Texts without sign whose value lies in `bounds`.

    A state remembers the value read so far only while what may follow lies partly inside the bounds
    and partly outside, which is so for the first digits of the bounds alone.
    """

    def __init__(self, bounds: Bounds, whole: int, fraction: int) -> None:
        self._bounds = bounds
        self._whole = whole
        self._fraction = fraction

    def build(self) -> Automaton:
        start: Hashable = ("start",)
        return automaton.explore(start, self._step)

    def _step(self, state: Hashable) -> tuple[_Found, bool]:
        assert isinstance(state, tuple)
        match state:
            case ("whole", fates, value):
                return self._after_digit(fates, value)
            case ("places", used, value):
                return self._after_point(used, value), used > 0 and self._fits(value)
            case _:
                return self._digits(Fraction(0), self._whole - 1), False

    def _fits(self, value: Fraction | None) -> bool:
        return value is None or self._bounds.holds(value)

    def _fate(self, low: Fraction, high: Fraction) -> str:
        """Whether all, none or some of what lies from `low` to `high` is inside the bounds."""
        if self._bounds.holds(low) and self._bounds.holds(high):
            return "all"
        overlap = self._bounds.tightened(Bounds(low, high))
        assert overlap.low is not None
        assert overlap.high is not None
        point = overlap.without_low or overlap.without_high
        return (
            "none"
            if overlap.low > overlap.high or (overlap.low == overlap.high and point)
            else "some"
        )

    def _digits(self, value: Fraction, left: int) -> _Found:
        """The moves by one more digit before the point, after which `left` more may follow."""
        found: _Found = []
        step = Fraction(1, 10**self._fraction)
        for digit in range(10):
            now = value * 10 + digit
            more = 0 if now == 0 else left
            fates = tuple(
                self._fate(now * 10**k, (now + 1) * 10**k - step) for k in range(more + 1)
            )
            if set(fates) != {"none"}:
                kept = now if "some" in fates else None
                found.append((_ZERO + digit, _ZERO + digit, ("whole", fates, kept)))
        return found

    def _after_digit(self, fates: tuple[str, ...], value: Fraction | None) -> tuple[_Found, bool]:
        ends = fates[0] == "all" or (fates[0] == "some" and self._fits(value))
        found: _Found = []
        if len(fates) > 1 and value is not None:
            found = self._digits(value, len(fates) - 2)
        elif len(fates) > 1 and set(fates[1:]) != {"none"}:
            found = [(_ZERO, _ZERO + 9, ("whole", fates[1:], None))]
        if self._fraction and fates[0] != "none":
            kept = value if fates[0] == "some" else None
            found.append((_POINT, _POINT, ("places", 0, kept)))
        return found, ends

    def _after_point(self, used: int, value: Fraction | None) -> _Found:
        if used == self._fraction:
            return []
        if value is None:
            return [(_ZERO, _ZERO + 9, ("places", used + 1, None))]
        found: _Found = []
        unit = Fraction(1, 10 ** (used + 1))
        for digit in range(10):
            now = value + digit * unit
            fate = self._fate(now, now + unit - Fraction(1, 10**self._fraction))
            if fate != "none":
                kept = now if fate == "some" else None
                found.append((_ZERO + digit, _ZERO + digit, ("places", used + 1, kept)))
        return found
