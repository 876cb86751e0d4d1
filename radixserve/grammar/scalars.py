"""Strings and numbers of one alternative as rules.

Owns: products of patterns, formats and lengths; ranges and multiples. Must not know: containers.
"""

from __future__ import annotations

from typing import Any

from radixserve.grammar import automaton, charset, digits, formats, regex, spell
from radixserve.grammar.automaton import Automaton
from radixserve.grammar.facts import Facts, TextRule, fraction
from radixserve.grammar.refusal import refused
from radixserve.grammar.regex import RegexError
from radixserve.grammar.rules import NEVER, Chars, Expr, Ref, Text, alt, optional, repeat, seq

# The grammar engine looks at most of the vocabulary for each: about 50 ms of compilation.
MAX_WIDE_STATES = 120

NUMBER = Ref("number")
_DIGIT = Chars(charset.of("09"))
_WHOLE = alt(Text("0"), seq(Chars(charset.of("19")), repeat(_DIGIT, 0, digits.INTEGER_DIGITS - 1)))
_MINUS = optional(Text("-"))
NUMBER_RULES: dict[str, Expr] = {
    "integer": seq(_MINUS, _WHOLE),
    "number": seq(
        Ref("integer"),
        optional(seq(Text("."), repeat(_DIGIT, 1, digits.INTEGER_DIGITS))),
        optional(
            seq(
                Chars(charset.of("E", "e")),
                optional(Chars(charset.of("+", "-"))),
                repeat(_DIGIT, 1, 2),
            )
        ),
    ),
}


def string(facts: Facts, speller: spell.Speller, pointer: str) -> Expr:
    """A JSON string that satisfies `facts`."""
    low, high = facts.length
    if high is not None and low > high:
        return NEVER
    direct = _direct(facts)
    if direct is not None:
        return seq(Text('"'), direct, Text('"'))
    rule = text_automaton(facts, pointer)
    if rule is None:
        return speller.string(low, high)
    if rule.is_empty:
        return NEVER
    return seq(Text('"'), speller.spell(rule, spell.in_json, Text('"')))


def _direct(facts: Facts) -> Expr | None:
    """A format or a long plain pattern that stands alone, spelled as it was written: counted
    repetitions stay counted, which costs the grammar engine least."""
    if len(facts.texts) != 1 or any(isinstance(value, str) for value, _ in facts.excluded):
        return None
    tree = _plain_tree(facts.texts[0])
    if tree is None or not spell.is_plain(tree):
        return None
    low, high = facts.length
    least, most = regex.lengths(tree)
    if least < low or (high is not None and (most is None or most > high)):
        return None
    return spell.tree(tree, spell.in_json)


def _plain_tree(rule: TextRule) -> regex.Tree | None:
    if rule.keyword == "format":
        pattern = formats.PATTERNS.get(rule.value)
        return None if pattern is None or rule.negated else regex.parse(pattern)
    if rule.negated:
        return None
    try:
        tree = regex.whole(regex.parse(rule.value))
    except RegexError:
        return None  # an automaton may still do, or says what is wrong
    return tree if tree is not None and regex.is_flat(tree) else None


def text_automaton(facts: Facts, pointer: str) -> Automaton | None:
    """The texts that `facts` allow; None when only their length is bound."""
    found = [rule for rule in map(_of_rule, facts.texts) if rule is not None]
    texts = [value for value, _ in facts.excluded if isinstance(value, str)]
    if not found and not texts:
        return None
    try:
        if texts:
            found.append(automaton.complement(automaton.from_texts(texts)))
        product = found[0]
        for other in found[1:]:
            product = automaton.intersect(product, other)
        product = automaton.bounded(product, *facts.length)
        if automaton.wide_states(product) > MAX_WIDE_STATES:
            raise automaton.TooLarge(f"needs more than {MAX_WIDE_STATES} states of many characters")
        return product
    except automaton.TooLarge as error:
        at, keyword = (
            (facts.texts[0].pointer, facts.texts[0].keyword)
            if facts.texts
            else (
                pointer,
                "not",
            )
        )
        raise refused(at, keyword, f"together with its neighbours {error}") from error


def _of_rule(rule: TextRule) -> Automaton | None:
    try:
        if rule.keyword == "pattern":
            found = automaton.from_regex(rule.value, search=True, narrow=not rule.negated)
            return automaton.complement(found) if rule.negated else found
        if rule.value in formats.REFUSED:
            raise refused(rule.pointer, "format", f"{rule.value!r} cannot be enforced")
        if rule.value not in formats.PATTERNS:
            return None
        return automaton.from_regex(formats.PATTERNS[rule.value], search=False)
    except (RegexError, automaton.TooLarge) as error:
        raise refused(rule.pointer, rule.keyword, f"{rule.value!r}: {error}") from error


def number(facts: Facts, speller: spell.Speller, pointer: str) -> Expr:
    """A number that satisfies `facts`."""
    excluded = [fraction(value) for value, _ in facts.excluded if _is_number(value)]
    whole = facts.whole or any(negated for _, negated, _ in facts.divisors)
    if facts.broken:
        if whole or any(value.denominator > 1 for value in excluded):
            return NEVER
        excluded = []
    if excluded and not whole:  # 1 is also 1.0: only integers are spelled in one way
        whole = True
    if facts.bounds.is_open and not (facts.divisors or excluded or facts.broken):
        return Ref("integer") if whole else NUMBER
    try:
        found = digits.integers(facts.bounds) if whole else digits.decimals(facts.bounds)
        for divisor, negated, _ in facts.divisors:
            multiples = digits.multiples(divisor)
            other = automaton.complement(multiples) if negated else multiples
            found = automaton.intersect(found, other)
        if facts.broken:
            found = automaton.intersect(found, digits.broken())
    except automaton.TooLarge as error:
        raise refused(pointer, "multipleOf", str(error)) from error
    texts = [str(value.numerator) for value in excluded if value.denominator == 1]
    if texts:
        found = automaton.intersect(found, automaton.complement(automaton.from_texts(texts)))
    _check_reach(facts, found, pointer)
    return speller.spell(found, spell.plain)


def _check_reach(facts: Facts, found: Automaton, pointer: str) -> None:
    """Bounds that hold values, none of which has few enough digits, are refused by name."""
    bounds = facts.bounds
    limit = 10 ** (digits.INTEGER_DIGITS if facts.whole else digits.DECIMAL_DIGITS)
    if not found.is_empty:
        return
    if bounds.low is not None and bounds.low >= limit:
        raise refused(pointer, "minimum", f"numbers above {limit} are not generated")
    if bounds.high is not None and bounds.high <= -limit:
        raise refused(pointer, "maximum", f"numbers below {-limit} are not generated")


def boolean(facts: Facts, words: spell.Words) -> Expr:
    values = [value for value in (True, False) if all(value is not v for v, _ in facts.excluded)]
    return alt(*(spell.literal(value, words) for value in values))


def null(facts: Facts, words: spell.Words) -> Expr:
    return NEVER if any(value is None for value, _ in facts.excluded) else Text(words.null)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
