"""The shape of the objects of one alternative.

Owns: which names there are, what each value must satisfy, which other names may come. Must not
know: how members are written.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from radixserve.grammar import automaton, effort, scalars, spell
from radixserve.grammar.automaton import Automaton
from radixserve.grammar.expand import Expander
from radixserve.grammar.facts import Conj, Facts, Node, ObjectPart
from radixserve.grammar.refusal import refused
from radixserve.grammar.regex import RegexError
from radixserve.grammar.rules import NEVER, Expr, Text, seq
from radixserve.grammar.values import Filter

MAX_PATTERNS = 6


@dataclass(frozen=True, slots=True)
class Property:
    conj: Conj
    is_required: bool


@dataclass(slots=True)
class Shape:
    """members: declared names in order. more: keys of other names with what their values
    satisfy."""

    members: dict[str, Property] = field(default_factory=dict)
    more: list[tuple[Expr, Conj]] = field(default_factory=list)


def shape_of(
    facts: Facts, speller: spell.Speller, check: Filter, expander: Expander, pointer: str
) -> Shape:
    """Raises InvalidRequest for patterns of names that cannot be enforced."""
    names: dict[str, None] = {}
    for part in facts.objects:
        names |= dict.fromkeys(part.named)
    names |= facts.required
    listed = _listed_names(facts, check, expander)
    if listed is not None and _is_open(facts):
        names |= dict.fromkeys(listed)
    patterns = _Patterns(facts.objects)
    shape = Shape()
    for name in names:
        conj = _conj_of(facts.objects, name, patterns)
        if facts.names and not check.valid([name], tuple(facts.names)):
            conj = (Node(False, pointer),)
        shape.members[name] = Property(conj, name in facts.required)
    if listed is None:
        _add_more(shape, facts, names, patterns, (speller, expander), pointer)
    return shape


def _is_open(facts: Facts) -> bool:
    """Names beyond the declared ones may come."""
    spoken = any(
        part.patterns or (part.rest is not None and part.rest.schema is not True)
        for part in facts.objects
    )
    declared = any(part.named for part in facts.objects if not part.is_silent) or facts.required
    return spoken or not declared


def _listed_names(facts: Facts, check: Filter, expander: Expander) -> list[str] | None:
    if not facts.names:
        return None
    found: list[str] = []
    for alternative in expander.alternatives(tuple(facts.names)):
        if not alternative.enums:
            return None
        found.extend(v for v in alternative.enums[0] if isinstance(v, str))
    return check.valid(found, tuple(facts.names))


class _Patterns:
    """The patterns of names, read once: what every reader matches, and what some reader would."""

    def __init__(self, parts: list[ObjectPart]) -> None:
        self.narrow: dict[str, Automaton] = {}
        self.wide: dict[str, Automaton] = {}
        for part in parts:
            for pattern, _ in part.patterns:
                try:
                    self.narrow[pattern] = automaton.from_regex(pattern, search=True)
                    self.wide[pattern] = automaton.from_regex(pattern, search=True, narrow=False)
                except (RegexError, automaton.TooLarge) as error:
                    raise refused(
                        part.pointer, "patternProperties", f"{pattern!r}: {error}"
                    ) from error


def _conj_of(parts: list[ObjectPart], name: str, patterns: _Patterns) -> Conj:
    found: list[Node] = []
    for part in parts:
        effort.spend(1 + 2 * len(name) * len(part.patterns))
        inside = [node for p, node in part.patterns if patterns.wide[p].accepts(name)]
        sure = any(patterns.narrow[p].accepts(name) for p, _ in part.patterns)
        if name in part.named:
            inside.append(part.named[name])
            sure = True
        found.extend(inside)
        if not sure and part.rest is not None:
            found.append(part.rest)
    return tuple(found)


def _add_more(
    shape: Shape,
    facts: Facts,
    names: dict[str, None],
    patterns: _Patterns,
    tools: tuple[spell.Speller, Expander],
    pointer: str,
) -> None:
    if not _is_open(facts):
        return
    if len(patterns.wide) > MAX_PATTERNS:
        raise refused(pointer, "patternProperties", f"more than {MAX_PATTERNS} patterns")
    speller, expander = tools
    known = list(patterns.wide)
    for size in range(len(known), -1, -1):
        for chosen in itertools.combinations(known, size):
            conj = _conj_for(facts.objects, set(chosen))
            if any(node.schema is node.negated for node in conj):
                continue
            for key in _keys(facts, names, patterns, set(chosen), speller, expander, pointer):
                shape.more.append((key, conj))


def _conj_for(parts: list[ObjectPart], chosen: set[str]) -> Conj:
    """What a value satisfies whose name matches exactly the `chosen` patterns and is not
    declared."""
    found: list[Node] = []
    for part in parts:
        inside = [node for p, node in part.patterns if p in chosen]
        found.extend(inside)
        if not inside and part.rest is not None:
            found.append(part.rest)
    return tuple(found)


def _keys(
    facts: Facts,
    names: dict[str, None],
    patterns: _Patterns,
    chosen: set[str],
    speller: spell.Speller,
    expander: Expander,
    pointer: str,
) -> list[Expr]:
    """Keys that match exactly `chosen`, are not declared and satisfy propertyNames."""
    try:
        wanted = [patterns.narrow[p] for p in chosen]
        wanted += [automaton.complement(a) for p, a in patterns.wide.items() if p not in chosen]
        if names:
            wanted.append(automaton.complement(automaton.from_texts(names)))
        found = []
        for alternative in _name_facts(facts, expander):
            own = scalars.text_automaton(alternative, pointer)
            found.append(_key(wanted, own, alternative.length, speller))
        return [key for key in found if key != NEVER]
    except automaton.TooLarge as error:
        raise refused(pointer, "patternProperties", str(error)) from error


def _name_facts(facts: Facts, expander: Expander) -> list[Facts]:
    if not facts.names:
        return [Facts()]
    found = expander.alternatives(tuple(facts.names))
    if any(alternative.enums for alternative in found):
        raise refused(facts.names[0].pointer, "", "an enum of names beside other alternatives")
    return [alternative for alternative in found if "string" in alternative.types]


def _key(
    wanted: list[Automaton],
    own: Automaton | None,
    length: tuple[int, int | None],
    speller: spell.Speller,
) -> Expr:
    product = [*wanted, own] if own is not None else wanted
    if not product:
        return speller.string(*length)
    joined = product[0]
    for other in product[1:]:
        joined = automaton.intersect(joined, other)
    joined = automaton.bounded(joined, *length)
    return seq(Text('"'), speller.spell(joined, spell.in_json, Text('"'))) if joined.ends else NEVER
