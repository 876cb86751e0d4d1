"""Turns structural tags into rules.

Owns: where free text ends, which tag a trigger may begin, inner grammars side by side. Must not
know: the JSON of structural tags, tokens.

Free text is followed up to the first of the texts that end it, so an output reads one way only: a
tag whose content is free text ends with the first of its ends, a trigger is always the beginning of
a tag. Free text therefore stands last, or has fixed texts behind it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from radixserve.errors import InvalidRequest
from radixserve.grammar import rules, scalars, spell, structure
from radixserve.grammar.freetext import TooLong, free_text
from radixserve.grammar.refusal import Unsupported, refused
from radixserve.grammar.rules import EMPTY, NEVER, Expr, Grammar, Ref, Text, alt, repeat, seq
from radixserve.grammar.structure import (
    AnyText,
    Const,
    Format,
    Inner,
    Or,
    Repeated,
    Separated,
    Tag,
    Triggered,
    wrong,
)
from radixserve.wire.params import Constraint, Writing

MAX_MOVES = 60_000  # of all free texts together

# Rules of any schema's grammar that say the same in each.
_GROUND = frozenset({*spell.STRING_RULES, *scalars.NUMBER_RULES, "any", "blanks"})

Ends = dict[str, Expr]  # a text, and what follows it
Read = Callable[[Constraint], Grammar]


def grammar_of(found: Format, writing: Writing, read: Read) -> Grammar:
    """The grammar of a structural tag. read: gives that of an inner constraint.

    Raises InvalidRequest with pointer and keyword.
    """
    builder = _Builder(writing, read)
    try:
        builder.table["root"] = builder.last(found)
    except TooLong as error:
        raise wrong(found.pointer, "", str(error)) from error
    return rules.finish(builder.table)


class _Builder:
    def __init__(self, writing: Writing, read: Read) -> None:
        self.table: dict[str, Expr] = {}
        self._writing = writing
        self._read = read
        self._inner: dict[Constraint, Grammar] = {}
        self._names: dict[Constraint, str] = {}
        self._free_count = 0
        self._moves_left = MAX_MOVES

    # A format that stands last: free text may run to the end of the output.

    def last(self, found: Format) -> Expr:
        match found:
            case Const(text):
                return Text(text)
            case Inner():
                return self._inside(found)
            case AnyText(excludes):
                return self._free(dict.fromkeys(excludes, NEVER), may_end=True)
            case structure.Sequence(parts):
                return self._sequence(parts, None)
            case Or(options):
                return alt(*map(self.last, options))
            case Tag(begin):
                return seq(Text(begin), self._body(found))
            case Triggered():
                return self._triggered(found, None)
            case Separated():
                return self._separated(found)
            case Repeated():
                return self._repeated(found)

    # A format with one of some texts behind it.

    def _before(self, found: Format, ends: Ends) -> Expr:
        """`found`, the first of the ends, and what follows that."""
        if not is_free(found):
            return seq(self.last(found), _any_of(ends))
        if "" in ends:
            raise wrong(found.pointer, "", "free text needs an end that is not empty")
        match found:
            case AnyText(excludes):
                return self._free(_without(excludes, ends) | ends, may_end=False)
            case structure.Sequence(parts):
                return self._sequence(parts, ends)
            case Or(options):
                return alt(*(self._before(option, ends) for option in options))
            case Triggered():
                return self._triggered(found, ends)
            case Repeated(part, low, high) if (low, high) == (0, 1):
                return alt(self._before(part, ends), _any_of(ends))
            case _:
                raise wrong(found.pointer, "", "free text cannot be repeated")

    def _body(self, tag: Tag) -> Expr:
        """A tag behind its begin."""
        return self._before(tag.content, dict.fromkeys(tag.ends, EMPTY))

    def _sequence(self, parts: Sequence[Format], ends: Ends | None) -> Expr:
        behind: list[Expr] = [EMPTY if ends is None else _any_of(ends)]  # from the last part on
        for place in reversed(range(len(parts))):
            part = parts[place]
            if not is_free(part):
                behind.append(seq(self.last(part), behind[-1]))
            elif place + 1 == len(parts):
                behind.append(self.last(part) if ends is None else self._before(part, ends))
            else:
                beginnings = self._beginnings(parts[place + 1], behind[-2])
                if beginnings is None:
                    raise wrong(part.pointer, "", "free text needs a fixed text behind it")
                behind.append(self._before(part, beginnings))
        return behind[-1]

    def _beginnings(self, found: Format, behind: Expr) -> Ends | None:
        """The texts that `found` begins with, each with the rest of it and what is behind; None
        where there are no such texts."""
        match found:
            case Const(text) if text:
                return {text: behind}
            case Tag(begin) if begin:
                return {begin: seq(self._body(found), behind)}
            case Or(options):
                joined: Ends = {}
                for option in options:
                    inner = self._beginnings(option, behind)
                    if inner is None:
                        return None
                    for text, rest in inner.items():
                        joined[text] = alt(joined[text], rest) if text in joined else rest
                return joined
            case _:
                return None

    # Tags

    def _triggered(self, found: Triggered, ends: Ends | None) -> Expr:
        _check_triggers(found, ends or {})
        bodies = [self._put("tag", self._body(tag)) for tag in found.tags]
        over = EMPTY if ends is None else _any_of(ends)
        name = self._free_name()
        after = over if found.stop_after_first else Ref(f"{name}0")
        forbidden = _without(found.excludes, ends or {})
        tags: Ends = {
            trigger: alt(
                *(
                    seq(Text(tag.begin[len(trigger) :]), body, after)
                    for tag, body in zip(found.tags, bodies)
                    if tag.begin.startswith(trigger)
                )
            )
            for trigger in found.triggers
        }
        stops = forbidden | tags | (ends or {})
        text = self._free(stops, may_end=ends is None, name=name)
        if not found.at_least_one:
            return text
        first = (seq(Text(tag.begin), body, after) for tag, body in zip(found.tags, bodies))
        return alt(*first)

    def _separated(self, found: Separated) -> Expr:
        tag = self._put("tag", alt(*map(self.last, found.tags)))
        many: Expr = tag
        if not found.stop_after_first:
            if not found.separator and any(map(self._may_be_empty, found.tags)):
                raise wrong(found.pointer, "separator", "neither it nor a tag has a character")
            many = seq(tag, repeat(seq(Text(found.separator), tag), 0, None))
        return many if found.at_least_one else rules.optional(many)

    def _repeated(self, found: Repeated) -> Expr:
        is_many = found.high is None or found.high > 1
        if is_many and is_free(found.part):
            raise wrong(found.pointer, "", "free text cannot be repeated")
        if is_many and self._may_be_empty(found.part):
            raise wrong(found.pointer, "content", "repeats what may be empty")
        return repeat(self._put("part", self.last(found.part)), found.low, found.high)

    def _may_be_empty(self, found: Format) -> bool:
        match found:
            case Const(text):
                return not text
            case Inner():
                return self._grammar(self._constraint(found), found).shortest["root"] == 0
            case structure.Sequence(parts):
                return all(map(self._may_be_empty, parts))
            case Or(options):
                return any(map(self._may_be_empty, options))
            case Tag(begin, content, ends):
                return not begin and "" in ends and self._may_be_empty(content)
            case Triggered() | Separated():
                return not found.at_least_one or all(map(self._may_be_empty, found.tags))
            case Repeated(part, low):
                return low == 0 or self._may_be_empty(part)
            case AnyText():
                return True

    # Inner grammars

    def _inside(self, found: Inner) -> Expr:
        constraint = self._constraint(found)
        if constraint not in self._names:
            self._names[constraint] = f"g{len(self._names)}"
            self._add(self._grammar(constraint, found), self._names[constraint], found)
        return Ref(f"{self._names[constraint]}_root")

    def _constraint(self, found: Inner) -> Constraint:
        try:
            if found.kind != "json_schema":
                return Constraint(kind=found.kind, value=found.value)
            schema = json.dumps(found.value, ensure_ascii=False)
            writing: Writing = "python" if found.style == "python" else self._writing
            return Constraint(kind=found.kind, value=schema, whitespace=writing)
        except InvalidRequest as error:
            raise wrong(found.pointer, "", error.message) from error

    def _grammar(self, constraint: Constraint, found: Inner) -> Grammar:
        if constraint not in self._inner:
            try:
                self._inner[constraint] = self._read(constraint)
            except Unsupported as error:
                place = found.pointer + error.pointer
                raise refused(place, error.keyword, error.why) from error
            except InvalidRequest as error:
                raise wrong(found.pointer, "", error.message) from error
        return self._inner[constraint]

    def _add(self, grammar: Grammar, prefix: str, found: Inner) -> None:
        shares = found.kind == "json_schema" and found.style == "json"
        names = {
            name: name if shares and name in _GROUND else f"{prefix}_{name}"
            for name in grammar.rules
        }
        for name, expr in grammar.rules.items():
            self.table[names[name]] = renamed(expr, names)

    def _free(self, stops: Ends, *, may_end: bool, name: str = "") -> Expr:
        """name: see _free_name; "" takes the next."""
        text, moves = free_text(
            self.table,
            name or self._free_name(),
            stops,
            may_end=may_end,
            most=self._moves_left,
        )
        self._moves_left -= moves
        return text

    def _free_name(self) -> str:
        self._free_count += 1
        return f"free{self._free_count}_"

    def _put(self, kind: str, expr: Expr) -> Ref:
        name = f"{kind}{len(self.table)}"
        self.table[name] = expr
        return Ref(name)


def renamed(expr: Expr, names: dict[str, str]) -> Expr:
    """`expr` with other names of the rules that it uses."""
    match expr:
        case Ref(name):
            return Ref(names[name])
        case rules.Seq(parts):
            return rules.Seq(tuple(renamed(part, names) for part in parts))
        case rules.Alt(options):
            return rules.Alt(tuple(renamed(option, names) for option in options))
        case rules.Repeat(part, low, high):
            return rules.Repeat(renamed(part, names), low, high)
        case _:
            return expr


def is_free(found: Format) -> bool:
    """It may end with free text, so where it ends shows only in what follows."""
    match found:
        case AnyText():
            return True
        case structure.Sequence(parts):
            return is_free(parts[-1])
        case Or(options):
            return any(map(is_free, options))
        case Triggered():
            return not (found.at_least_one and found.stop_after_first)
        case Repeated(part):
            return is_free(part)
        case _:
            return False


def _any_of(ends: Ends) -> Expr:
    return alt(*(seq(Text(text), behind) for text, behind in ends.items()))


def _without(excludes: Sequence[str], ends: Ends) -> Ends:
    """The excluded texts; one that is an end is excluded by being it."""
    return {text: NEVER for text in excludes if text not in ends}


def _check_triggers(found: Triggered, ends: Ends) -> None:
    if not found.triggers:
        raise wrong(found.pointer, "triggers", "needs at least one text")
    for place, trigger in enumerate(found.triggers):
        why = _never(trigger, found, ends)
        if why:
            raise wrong(found.pointer, f"triggers/{place}", f"{trigger!a} {why}")
    for tag in found.tags:
        if not tag.begin.startswith(found.triggers):
            raise wrong(tag.pointer, "begin", f"{tag.begin!a} begins with no trigger")


def _never(trigger: str, found: Triggered, ends: Ends) -> str:
    """Why `trigger` could never begin a tag; "" where it can."""
    if trigger in found.excludes:
        return "is excluded"
    if not any(tag.begin.startswith(trigger) for tag in found.tags):
        return "begins no tag"
    sooner = [other for other in found.triggers if other in trigger[1:-1]]
    sooner += [end for end in ends if end in trigger]
    return f"holds {sooner[0]!a}, which comes sooner" if sooner else ""
