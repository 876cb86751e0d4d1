"""Automata of number ranges and multiples, against arithmetic."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from radixserve.grammar import automaton, digits
from radixserve.grammar.digits import Bounds


def bounds(rng: random.Random, unit: int) -> Bounds:
    low = rng.choice([None, Fraction(rng.randrange(-300, 300), unit)])
    start = low or Fraction(rng.randrange(-20, 20))
    high = rng.choice([None, start + Fraction(rng.randrange(300), unit)])
    return Bounds(low, high, rng.random() < 0.3, rng.random() < 0.3)


def test_integers():
    rng = random.Random(1)
    for _ in range(40):
        limits = bounds(rng, 1)
        divisor = Fraction(rng.choice([1, 2, 3, 7]))
        found = automaton.intersect(digits.integers(limits), digits.multiples(divisor))
        for value in [*range(-700, 700, 3), 10**17, -(10**17)]:
            expected = limits.holds(Fraction(value)) and value % divisor == 0
            assert found.accepts(str(value)) == expected, (limits, value)
        assert not any(map(found.accepts, ["-0", "01", "", "-", "1.0"]))


def test_decimals():
    rng = random.Random(2)
    for _ in range(40):
        limits = bounds(rng, 100)
        found = digits.decimals(limits)
        fifths = automaton.intersect(found, digits.multiples(Fraction(1, 5)))
        for _ in range(300):
            value = Fraction(rng.randrange(-40000, 40000), 1000)
            text = f"{float(value):.3f}"
            if value:
                assert found.accepts(text) == limits.holds(value), (limits, text)
                expected = limits.holds(value) and (value * 5).denominator == 1
                assert fifths.accepts(text) == expected, (limits, text)


def test_small_ranges():
    unit = digits.decimals(Bounds(Fraction(0), Fraction(1), without_high=True))
    assert all(map(unit.accepts, ["0", "0.5", "0.99999", "0.0"]))
    assert not any(map(unit.accepts, ["1", "1.0", "-0.1", ".5", "0.", "00.5", "1e-3"]))
    assert digits.integers(Bounds(Fraction(3, 2), Fraction(7, 4))).is_empty


def test_broken():
    found = digits.broken()
    assert all(map(found.accepts, ["0.5", "-3.10"]))
    assert not any(map(found.accepts, ["1", "1.0", "-2.00"]))


def test_divisors_out_of_reach():
    with pytest.raises(automaton.TooLarge):
        digits.multiples(Fraction(12345))
    with pytest.raises(automaton.TooLarge):
        digits.multiples(Fraction(1, 3))
