"""How much work reading a constraint may be: grammar/effort.py, and what is read in proportion."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import pytest

from radixserve.errors import InvalidRequest
from radixserve.grammar import automaton, check, ebnf, effort, rules
from radixserve.wire.params import Constraint


def schema(value: Any) -> Constraint:
    return Constraint(kind="json_schema", value=json.dumps(value))


def texts(value: Any) -> list[str]:
    """All outputs of a schema that has few."""
    found = check.grammar(schema(value)).rules
    expr = found["root"]
    while isinstance(expr, rules.Ref):
        expr = found[expr.name]
    options = expr.options if isinstance(expr, rules.Alt) else (expr,)
    assert all(isinstance(option, rules.Text) for option in options)
    return [option.text for option in options if isinstance(option, rules.Text)]


def within(limit: int, steps: int) -> None:
    with effort.limited(limit):
        effort.spend(steps)


# ---- the count ----


def test_the_limit_that_is_passed_first_is_named() -> None:
    with effort.limited(10) as outer, pytest.raises(effort.Exhausted) as raised:
        within(100, 11)
    assert raised.value.meter is outer
    with effort.limited(10) as outer, pytest.raises(effort.Exhausted) as raised:
        within(5, 6)
    assert raised.value.meter is not outer
    assert outer.spent == 6


def test_what_is_spent_inside_counts_outside() -> None:
    with effort.limited(10) as outer:
        with effort.limited(5):
            effort.spend(4)
        with effort.apart() as kept:
            effort.spend(3)
        assert (outer.spent, kept.spent) == (4, 3)
        with contextlib.suppress(ValueError), effort.apart():
            effort.spend(2)
            raise ValueError
        assert outer.spent == 6
        with pytest.raises(effort.Exhausted) as raised, effort.apart():
            effort.spend(5)
        assert raised.value.meter is outer
    effort.spend(1000)  # nothing is limited any more


def test_the_same_work_takes_the_same_steps_whatever_is_kept() -> None:
    pattern = "^(a|b){3}x{1,7}$"

    def steps() -> int:
        with effort.limited(10**6) as meter:
            automaton.from_regex(pattern, search=True)
        return meter.spent

    automaton._from_regex.cache_clear()
    assert steps() == steps() > 0


def test_a_constraint_that_takes_too_many_steps_is_refused(monkeypatch) -> None:
    """Each of its patterns would do alone."""
    patterns = [f"^((a{{1,9}}){{1,20}})x{i}$" for i in range(30)]
    members = {f"p{i}": {"type": "string", "pattern": p} for i, p in enumerate(patterns)}
    constraint = schema({"type": "object", "properties": members})
    assert check.check(schema({"type": "string", "pattern": patterns[0]}))
    monkeypatch.setattr(check, "MAX_STEPS", 300_000)
    with pytest.raises(InvalidRequest, match="takes more than 300000 steps") as raised:
        check.check(constraint)
    assert (raised.value.code, raised.value.param) == ("unsupported_schema", "json_schema")


def test_an_outer_limit_is_no_refusal() -> None:
    with effort.limited(100), pytest.raises(effort.Exhausted):
        check.check(schema({"type": "string", "pattern": "^(a{1,9}){1,20}$"}))


# ---- in proportion ----

TRAP = "^(a+)+$"  # a backtracking matcher takes 2^40 steps for what follows
CAUGHT = "a" * 40 + "!"


@pytest.mark.parametrize(
    "value",
    [
        {"enum": [CAUGHT, "aa"], "pattern": TRAP},
        {"enum": [CAUGHT, "aa"], "not": {"not": {"pattern": TRAP}}},
        {
            "enum": [{CAUGHT: 1}, "aa"],
            "additionalProperties": False,
            "patternProperties": {TRAP: {}},
        },
        {"enum": [{CAUGHT: 1}, "aa"], "propertyNames": {"pattern": TRAP}},
        {"enum": [[CAUGHT], "aa"], "items": {"pattern": TRAP}},
        {
            "enum": [{CAUGHT: 1}, "aa"],
            "allOf": [{"patternProperties": {TRAP: {}}}],
            "unevaluatedProperties": False,
        },
    ],
)
def test_values_are_matched_without_backtracking(value: Any) -> None:
    with effort.limited(5000):
        assert texts(value) == ['"aa"']


def test_names_are_matched_without_backtracking() -> None:
    value = {
        "type": "object",
        "properties": {CAUGHT: {}, "aa": {}},
        "propertyNames": {"pattern": TRAP},
    }
    with effort.limited(5000):
        assert CAUGHT[:-1] not in rules.ebnf(check.grammar(schema(value)))


@pytest.mark.parametrize("wanted", [{"pattern": r"^\d$"}, {"not": {"pattern": r"^\D$"}}])
def test_values_that_readers_of_a_pattern_disagree_about_are_left_out(wanted: Any) -> None:
    assert texts({"enum": ["3", "x", "\u0663"], **wanted}) == ['"3"']


def test_a_pattern_that_cannot_be_read_is_named_beside_an_enum() -> None:
    inner = {"enum": ["foo", "bar"], "pattern": r"\bfoo"}
    with pytest.raises(InvalidRequest, match="pattern at #/properties/a/allOf/0/pattern"):
        check.check(schema({"type": "object", "properties": {"a": {"allOf": [inner]}}}))


@pytest.mark.parametrize(
    "value",
    [
        {"enum": list(range(4096))},
        {"allOf": [{"enum": list(range(4096))}, {"enum": list(range(2000, 6000))}]},
        {"oneOf": [{"enum": list(range(i * 900, i * 900 + 900))} for i in range(5)]},
        {"enum": [[{"a": i} for i in range(4000)]], "uniqueItems": True},
    ],
    ids=["one", "two", "five that exclude each other", "an array"],
)
def test_large_enums_take_steps_in_proportion(value: Any) -> None:
    with effort.limited(500_000):
        assert not check.grammar(schema(value)).is_empty


def test_enums_hold_each_value_once_as_json_counts_them() -> None:
    values = [1, 1.0, True, [1], [1.0], [True], {"a": 1, "b": 2}, {"b": 2.0, "a": 1}, "1", None]
    kept = ["1", "true", "[1]", "[true]", '{"a": 1, "b": 2}', '"1"', "null"]
    assert texts({"enum": values}) == kept
    assert texts({"allOf": [{"enum": values}, {"enum": [1.0, [True]]}]}) == ["1", "[true]"]
    unique = {"enum": [[[1], [True]], [[1], [1.0]]], "uniqueItems": True}
    assert texts(unique) == ["[[1], [true]]"]


# ---- recursion of EBNF ----


def hides_itself(edges: dict[str, list[tuple[str, bool]]], empties: set[str]) -> bool:
    """By following every way from every rule."""
    for name in edges:
        seen = {(name, False)}
        queue = [(name, False)]
        for at, hidden in queue:
            for used, after_empty in edges[at]:
                step = (used, hidden or after_empty)
                if used == name and (step[1] or name in empties):
                    return True
                if step not in seen:
                    seen.add(step)
                    queue.append(step)
    return False


def test_rules_that_begin_with_themselves_are_found_as_by_following_every_way() -> None:
    draw = random.Random(7)
    refused = 0
    for _ in range(300):
        names = ["root", "a", "b", "c", "d"]
        edges: dict[str, list[tuple[str, bool]]] = {name: [] for name in names}
        lines = []
        for name in names:
            options = ['"x"']
            for used in draw.sample(names, draw.choice((0, 1, 1, 2))):
                hidden = draw.random() < 0.15
                edges[name].append((used, hidden))
                options.append(f'"y"? {used} "z"' if hidden else f'{used} "z"')
            lines.append(f"{name} ::= {' | '.join(options)}")
        was_refused = False
        try:
            ebnf.read("\n".join(lines))
        except ebnf.EbnfError:
            was_refused = True
        assert was_refused == hides_itself(edges, set())
        refused += was_refused
    assert 20 < refused < 280


def test_a_long_chain_of_rules_that_may_be_empty_is_read() -> None:
    chain = [f'r{i} ::= r{i + 1} "a" | ""' for i in range(1990)]
    table = ebnf.read("\n".join(["root ::= r0", *chain, 'r1990 ::= "a"']))
    assert len(table) == 1992
    with pytest.raises(ebnf.EbnfError, match="begins with itself and may be empty"):
        ebnf.read("\n".join(["root ::= r0", *chain, 'r1990 ::= r3 | "a"']))
