"""Turns a JSON Schema into rules that generate only what it allows.

Owns: one rule for each conjunction of subschemas, the values of enums, what members and items are
made of. Must not know: tokens, the grammar engine.
"""

from __future__ import annotations

import keyword
import unicodedata
from dataclasses import dataclass

from radixserve.grammar import containers, rules, scalars, spell, values
from radixserve.grammar.containers import Layout, Member, Members
from radixserve.grammar.document import Document
from radixserve.grammar.expand import Expander
from radixserve.grammar.facts import Conj, Facts, Node
from radixserve.grammar.objects import Shape, shape_of
from radixserve.grammar.refusal import refused
from radixserve.grammar.rules import NEVER, Expr, Grammar, Ref, Text, alt, repeat, seq
from radixserve.wire.params import Writing

MAX_RULES = 20000
MAX_PERMUTED = 6
_LAYOUTS = {
    "fixed": containers.FIXED,
    "bounded": containers.BOUNDED,
    "python": containers.PYTHON,
}


def grammar_of(document: Document, writing: Writing) -> Grammar:
    """The grammar of a schema; for "python", of the arguments of a Python call, by name.

    Raises InvalidRequest for what cannot be enforced, and for a schema
    that no finite value satisfies."""
    return _Builder(document, writing).build()


@dataclass(frozen=True, slots=True)
class _Task:
    name: str
    conj: Conj


class _Builder:
    def __init__(self, document: Document, writing: Writing) -> None:
        self._document = document
        self._layout = _LAYOUTS[writing]
        self._expander = Expander(document)
        self._table: dict[str, Expr] = _ground(self._layout)
        self._speller = spell.Speller(self._table)
        self._filter = values.Filter(document)
        self._names: dict[frozenset[str], str] = {frozenset(): "any"}
        self._todo: list[_Task] = []

    def build(self) -> Grammar:
        root = Node(self._document.root, "")
        is_call = self._layout is containers.PYTHON
        self._table["root"] = self._arguments((root,)) if is_call else self._value((root,))
        while self._todo:
            task = self._todo.pop()
            self._table[task.name] = self._choice(task.conj, task.name)
            if len(self._table) > MAX_RULES:
                raise refused("", "", f"takes more than {MAX_RULES} rules")
        grammar = rules.finish(self._table)
        if grammar.is_empty:
            raise refused("", "", "no value that can be generated satisfies it")
        return grammar

    def _value(self, conj: Conj) -> Expr:
        """The rule for a value that satisfies every node."""
        if any(node.schema is node.negated for node in conj):
            return NEVER
        told = {node.key: node for node in conj if not isinstance(node.schema, bool)}
        key = frozenset(told)
        if key not in self._names:
            self._names[key] = f"v{len(self._names)}"
            self._todo.append(_Task(self._names[key], tuple(told.values())))
        return Ref(self._names[key])

    def _choice(self, conj: Conj, name: str) -> Expr:
        found = self._expander.alternatives(conj)
        options: list[Expr] = []
        for i, facts in enumerate(found):
            if facts.enums:
                kept = self._filter.valid(facts.enums[0], conj)
                options.extend(map(self._literal, kept))
            else:
                options.extend(self._typed(facts, conj, f"{name}_{i}"))
        return alt(*options)

    def _typed(self, facts: Facts, conj: Conj, name: str) -> list[Expr]:
        pointer = conj[0].pointer
        made: list[Expr] = []
        if "null" in facts.types:
            made.append(scalars.null(facts, self._layout.words))
        if "boolean" in facts.types:
            made.append(scalars.boolean(facts, self._layout.words))
        if "number" in facts.types:
            made.append(scalars.number(facts, self._speller, pointer))
        if "string" in facts.types:
            made.append(scalars.string(facts, self._speller, pointer))
        kinds = {values.kind(value) for value, _ in facts.excluded}
        if "array" in facts.types and "array" not in kinds:
            made.append(self._array(facts, pointer, name + "a"))
        if "object" in facts.types and "object" not in kinds:
            made.append(self._object(facts, pointer, name + "o"))
        return made

    def _put(self, name: str, expr: Expr) -> Ref:
        self._table[name] = expr
        return Ref(name)

    # Objects

    def _object(self, facts: Facts, pointer: str, name: str) -> Expr:
        inner = self._members(facts, pointer, name)
        return containers.bracketed("{", inner, "}", self._layout)

    def _arguments(self, conj: Conj) -> Expr:
        """An object's members as name=value; no other names than the declared ones."""
        options = []
        for i, facts in enumerate(self._expander.alternatives(conj)):
            if facts.enums:
                raise refused("", "enum", "whole arguments of a Python call cannot be listed")
            if "object" in facts.types:
                options.append(self._members(facts, "", f"root_{i}o", in_call=True))
        return alt(*options)

    def _literal(self, value: object) -> Text:
        return spell.literal(value, self._layout.words)

    def _members(self, facts: Facts, pointer: str, name: str, *, in_call: bool = False) -> Expr:
        shape = shape_of(facts, self._speller, self._filter, self._expander, pointer)
        layout = self._layout
        members = []
        for key, member in shape.members.items():
            value = self._value(member.conj)
            begin = _keyword(key, pointer) if in_call else seq(self._literal(key), layout.colon)
            pair = seq(begin, value, layout.after)
            members.append(Member(pair, member.is_required))
        if in_call:
            shape.more = []
        more = alt(
            *(seq(key, layout.colon, self._value(conj), layout.after) for key, conj in shape.more)
        )
        _check_count(facts, shape, pointer)
        try:
            return Members(members, more, facts.size, layout).write(name, self._table)
        except containers.TooManyStates as error:
            raise refused(pointer, "maxProperties", str(error)) from error

    # Arrays

    def _array(self, facts: Facts, pointer: str, name: str) -> Expr:
        low, high = facts.items
        if high is not None and low > high:
            return NEVER
        try:
            inner = self._items(facts, name)
        except containers.TooManyStates as error:
            keyword = "contains" if facts.contains else "maxItems"
            raise refused(pointer, keyword, str(error)) from error
        return containers.bracketed("[", inner, "]", self._layout)

    def _items(self, facts: Facts, name: str) -> Expr:
        places = max((len(part.prefix) for part in facts.arrays), default=0)
        if facts.unique is not None and facts.items[1] not in (0, 1):
            return self._unique(facts, places, name)
        if facts.contains:
            return self._containing(facts, places, name)
        low, high = facts.items
        rest = _item_conj(facts, places)
        if places and all(part.rest is None for part in facts.arrays):
            high = max(low, places) if high is None else min(high, max(low, places))
        exprs = [self._item(_item_conj(facts, i)) for i in range(places)]
        return containers.tuple_items(
            exprs, self._item(rest), (low, high), self._layout, self._put, name
        )

    def _item(self, conj: Conj) -> Expr:
        return seq(self._value(conj), self._layout.after)

    def _unique(self, facts: Facts, places: int, name: str) -> Expr:
        assert facts.unique is not None
        conj = _item_conj(facts, 0)
        found = None if places else self._filter.all_of(conj, self._expander)
        if found is None or facts.contains:
            raise refused(
                facts.unique, "uniqueItems", "can only be enforced for items of an enum of values"
            )
        exprs = [seq(self._literal(value), self._layout.after) for value in found]
        if len(exprs) <= MAX_PERMUTED:
            return containers.permutations(exprs, facts.items, self._layout, self._put, name)
        members = [Member(expr, is_required=False) for expr in exprs]
        return Members(members, NEVER, facts.items, self._layout).write(name, self._table)

    def _containing(self, facts: Facts, places: int, name: str) -> Expr:
        wanted = facts.contains[0]
        if len(facts.contains) > 1 or places:
            raise refused(
                wanted.pointer, "contains", "cannot be enforced beside prefixItems or twice"
            )
        conj = _item_conj(facts, 0)
        without = Node(wanted.node.schema, wanted.node.pointer, not wanted.node.negated)
        other = (*conj, without) if wanted.high is not None else conj
        spans = self._item(other), self._item((*conj, wanted.node))
        found = wanted.low, wanted.high
        return containers.containing(spans, facts.items, found, self._layout, self._put, name)


def _keyword(name: str, pointer: str) -> Expr:
    if not is_argument(name):
        raise refused(pointer, "properties", f"{name!r} cannot name an argument of a Python call")
    return Text(f"{name}=")


def is_argument(name: str) -> bool:
    """Python reads `name` as it is written."""
    is_plain = name.isidentifier() and unicodedata.normalize("NFKC", name) == name
    return is_plain and not keyword.iskeyword(name)


def _item_conj(facts: Facts, place: int) -> Conj:
    found = []
    for part in facts.arrays:
        if place < len(part.prefix):
            found.append(part.prefix[place])
        elif part.rest is not None:
            found.append(part.rest)
    return tuple(found)


def _check_count(facts: Facts, shape: Shape, pointer: str) -> None:
    """Names that are not declared may repeat, so no more than one of them can be counted."""
    if not shape.more:
        return
    if facts.size[0] > sum(m.is_required for m in shape.members.values()) + 1:
        raise refused(pointer, "minProperties", "cannot be enforced on names that are not declared")


def _ground(layout: Layout) -> dict[str, Expr]:
    """The rules of any JSON value."""
    pair = seq(spell.STRING, layout.colon, Ref("any"), layout.after)
    item = seq(Ref("any"), layout.after)
    members = rules.optional(seq(pair, repeat(seq(layout.comma, pair), 0, None)))
    items = rules.optional(seq(item, repeat(seq(layout.comma, item), 0, None)))
    return {
        **(spell.PYTHON_STRING_RULES if layout is containers.PYTHON else spell.STRING_RULES),
        **scalars.NUMBER_RULES,
        "blanks": repeat(rules.Chars(((9, 10), (13, 13), (32, 32))), 0, 8),
        "any": alt(
            containers.bracketed("{", members, "}", layout),
            containers.bracketed("[", items, "]", layout),
            spell.STRING,
            Ref("number"),
            *map(Text, layout.words),
        ),
    }
