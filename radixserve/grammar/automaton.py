"""Deterministic automata over characters.

Owns: building them from regex trees, product, complement, lengths, minimising. Must not know: JSON,
how an automaton is spelled in a grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from radixserve.grammar import charset, effort, regex
from radixserve.grammar.charset import Ranges

MAX_STATES = 3000
MAX_NODES = 20000
MAX_EDGES = 60000
MAX_WORK = 400_000
_MAX_MINIMISED = 300


class TooLarge(ValueError):
    """The automaton, or the work of finding it, passes a limit of this module."""


State = TypeVar("State", bound=Hashable)
Moves = tuple[tuple[int, int, int], ...]  # (low, high, target): sorted, disjoint


@dataclass(frozen=True, slots=True)
class Automaton:
    """State 0 is the start; a character without a move fails. Every state can reach an end, unless
    nothing is accepted at all."""

    moves: tuple[Moves, ...]
    ends: frozenset[int]

    @property
    def is_empty(self) -> bool:
        return not self.ends

    def accepts(self, text: str) -> bool:
        state = 0
        for char in text:
            code = ord(char)
            found = [t for low, high, t in self.moves[state] if low <= code <= high]
            if not found:
                return False
            state = found[0]
        return state in self.ends


def explore(
    start: State, step: Callable[[State], tuple[list[tuple[int, int, State]], bool]]
) -> Automaton:
    """The automaton of all that `step` (moves, is an end) reaches from `start`."""
    ids = {start: 0}
    queue = [start]
    moves: list[list[tuple[int, int, int]]] = []
    ends = set()
    edges = 0
    for state in queue:
        found, is_end = step(state)
        if is_end:
            ends.add(len(moves))
        row = []
        for low, high, target in found:
            if target not in ids:
                ids[target] = len(queue)
                queue.append(target)
            row.append((low, high, ids[target]))
        moves.append(row)
        edges += len(row)
        effort.spend(5 + 2 * len(row))
        if len(queue) > MAX_STATES or edges > MAX_EDGES:
            raise TooLarge(f"needs more than {MAX_STATES} states or {MAX_EDGES} moves")
    return minimal(moves, ends)


def minimal(moves: list[list[tuple[int, int, int]]], ends: set[int]) -> Automaton:
    """The automaton of these rows, without dead states; small ones with the fewest states."""
    effort.spend(2 * sum(map(len, moves)))
    alive = _alive(moves, ends)
    if 0 not in alive:
        return Automaton(((),), frozenset())
    if len(moves) > _MAX_MINIMISED:  # refining takes quadratic time; larger ones are only trimmed
        block = list(range(len(moves)))
        return _renumbered([_joined(row, alive) for row in moves], block, ends)
    rows = [_joined(row, alive) if i in alive else () for i, row in enumerate(moves)]
    block = [int(i in ends) for i in range(len(rows))]
    count = 0
    while True:
        effort.spend(sum(map(len, rows)))
        names: dict[tuple[int, Moves], int] = {}
        following = []
        for i, row in enumerate(rows):
            view = _joined([(low, high, block[t]) for low, high, t in row], None)
            following.append(names.setdefault((block[i], view), len(names)))
        block = following
        if len(names) == count:
            break
        count = len(names)
    return _renumbered(rows, block, ends)


def _renumbered(rows: list[Moves], block: list[int], ends: set[int]) -> Automaton:
    ids = {block[0]: 0}
    queue = [0]
    moves = []
    for state in queue:
        row = []
        for low, high, target in rows[state]:
            if block[target] not in ids:
                ids[block[target]] = len(queue)
                queue.append(target)
            row.append((low, high, ids[block[target]]))
        moves.append(_joined(row, None))
    return Automaton(tuple(moves), frozenset(i for i, s in enumerate(queue) if s in ends))


def _alive(moves: list[list[tuple[int, int, int]]], ends: set[int]) -> set[int]:
    back: dict[int, list[int]] = {}
    for state, row in enumerate(moves):
        for _, _, target in row:
            back.setdefault(target, []).append(state)
    alive = set(ends)
    queue = list(ends)
    for state in queue:
        for source in back.get(state, ()):
            if source not in alive:
                alive.add(source)
                queue.append(source)
    return alive


def _joined(row: Iterable[tuple[int, int, int]], alive: set[int] | None) -> Moves:
    """Sorted, neighbours with one target joined, moves to dead states left out."""
    out: list[tuple[int, int, int]] = []
    for low, high, target in sorted(row):
        if alive is not None and target not in alive:
            continue
        if out and out[-1][1] + 1 == low and out[-1][2] == target:
            out[-1] = (out[-1][0], high, target)
        else:
            out.append((low, high, target))
    return tuple(out)


_Places = tuple[frozenset[int], bool]  # nodes, and whether no character has been read


class _Nodes:
    """A nondeterministic automaton under construction."""

    def __init__(self, wide: bool) -> None:
        self.chars: list[list[tuple[Ranges, int]]] = []
        self.empty: list[list[int]] = []
        self.edges: list[list[tuple[bool, int]]] = []  # (is $, target)
        self._wide = wide

    def add(self) -> int:
        if len(self.chars) >= MAX_NODES:
            raise TooLarge(f"repetitions multiply to more than {MAX_NODES} places")
        effort.spend(2)
        self.chars.append([])
        self.empty.append([])
        self.edges.append([])
        return len(self.chars) - 1

    def build(self, tree: regex.Tree, start: int) -> int:
        """Add `tree` behind `start`; returns its last node."""
        match tree:
            case regex.Chars(ranges):
                end = self.add()
                self.chars[start].append((ranges, end))
                return end
            case regex.Edge(is_end):
                return self._edge(is_end, start)
            case regex.Sequence(parts):
                for part in parts:
                    start = self.build(part, start)
                return start
            case regex.Choice(options):
                end = self.add()
                for option in options:
                    branch = self.add()
                    self.empty[start].append(branch)
                    self.empty[self.build(option, branch)].append(end)
                return end
            case regex.Repeat(part, low, high):
                return self._repeat(part, low, high, start)

    def _edge(self, is_end: bool, start: int) -> int:
        end = self.add()
        self.edges[start].append((is_end, end))
        if is_end and self._wide:  # some readers let $ stand before a last line end
            before = self.add()
            self.chars[start].append((charset.of("\n"), before))
            self.edges[before].append((True, end))
        return end

    def _repeat(self, part: regex.Tree, low: int, high: int | None, start: int) -> int:
        for _ in range(low):
            start = self.build(part, start)
        end = self.add()
        if high is None:
            loop = self.add()
            self.empty[start].append(loop)
            self.empty[self.build(part, loop)].append(loop)
            self.empty[loop].append(end)
            return end
        for _ in range(high - low):
            self.empty[start].append(end)
            start = self.build(part, start)
        self.empty[start].append(end)
        return end

    def closure(self, nodes: Iterable[int], *, at_start: bool, at_end: bool) -> frozenset[int]:
        seen = set(nodes)
        queue = list(seen)
        for node in queue:
            more = list(self.empty[node])
            more += [t for is_end, t in self.edges[node] if (at_end if is_end else at_start)]
            for target in more:
                if target not in seen:
                    seen.add(target)
                    queue.append(target)
        return frozenset(seen)

    def determinise(self, start: int, end: int) -> Automaton:
        work = 0

        def step(state: _Places) -> tuple[list[tuple[int, int, _Places]], bool]:
            nonlocal work
            nodes, at_start = state
            work += len(nodes)
            effort.spend(2 * len(nodes))
            if work > MAX_WORK:
                raise TooLarge("its repetitions overlap in too many ways")
            is_end = end in self.closure(nodes, at_start=at_start, at_end=True)
            ready = self.closure(nodes, at_start=at_start, at_end=False)
            out = [move for node in ready for move in self.chars[node]]
            found: list[tuple[int, int, _Places]] = []
            for low, high, targets in _split(out):
                closed = self.closure(targets, at_start=False, at_end=False)
                found.append((low, high, (closed, False)))
            return found, is_end

        return explore((frozenset((start,)), True), step)


def _split(moves: list[tuple[Ranges, int]]) -> list[tuple[int, int, frozenset[int]]]:
    """Disjoint ranges with all targets of each."""
    marks: dict[int, list[tuple[int, int]]] = {}
    for ranges, target in moves:
        for low, high in ranges:
            marks.setdefault(low, []).append((1, target))
            marks.setdefault(high + 1, []).append((-1, target))
    counts: dict[int, int] = {}
    out = []
    points = sorted(marks)
    for point, following in zip(points, [*points[1:], 0]):
        for sign, target in marks[point]:
            counts[target] = counts.get(target, 0) + sign
        targets = frozenset(t for t, n in counts.items() if n)
        if targets:
            out.append((point, following - 1, targets))
    return out


def from_regex(pattern: str, *, search: bool, narrow: bool = True) -> Automaton:
    """What `pattern` matches: whole texts, or with `search` texts that hold a match somewhere.

    narrow: see regex.parse. Raises RegexError, TooLarge.
    """
    found, steps = _from_regex(pattern, search, narrow)
    effort.spend(steps)
    return found


@lru_cache(maxsize=256)
def _from_regex(pattern: str, search: bool, narrow: bool) -> tuple[Automaton, int]:
    """The automaton, and the steps that finding it takes."""
    with effort.apart() as meter:
        heads, pattern = regex.split_heads(pattern)
        found = _without_heads(pattern, search, narrow)
        for head, is_negative in heads:
            ahead = _without_heads(head, True, narrow != is_negative)
            found = intersect(found, complement(ahead) if is_negative else ahead)
    return found, meter.spent


def _without_heads(pattern: str, search: bool, narrow: bool) -> Automaton:
    nodes = _Nodes(wide=not narrow)
    start = nodes.add()
    first = start
    if search:
        first = nodes.add()
        nodes.chars[start].append((charset.EVERYTHING, start))
        nodes.empty[start].append(first)
    end = nodes.build(regex.parse(pattern, narrow=narrow), first)
    if search:
        last = nodes.add()
        nodes.empty[end].append(last)
        nodes.chars[last].append((charset.EVERYTHING, last))
        end = last
    return nodes.determinise(start, end)


def from_texts(texts: Iterable[str]) -> Automaton:
    """Exactly these texts."""
    texts = list(texts)
    effort.spend(sum(map(len, texts)))
    table: list[dict[str, int]] = [{}]
    ends = set()
    for text in texts:
        state = 0
        for char in text:
            if char not in table[state]:
                table[state][char] = len(table)
                table.append({})
            state = table[state][char]
        ends.add(state)
        if len(table) > MAX_EDGES:
            raise TooLarge("too much text")
    return minimal([[(ord(c), ord(c), t) for c, t in row.items()] for row in table], ends)


def of_length(low: int, high: int | None) -> Automaton:
    """All texts of `low` to `high` characters."""
    size = (low if high is None else high) + 1
    if size > MAX_STATES:
        raise TooLarge(f"lengths above {MAX_STATES}")
    moves: list[list[tuple[int, int, int]]] = []
    for i in range(size):
        target = i + 1 if i + 1 < size else (i if high is None else None)
        moves.append([(a, b, target) for a, b in charset.EVERYTHING if target is not None])
    return Automaton(tuple(_joined(row, None) for row in moves), frozenset(range(low, size)))


def intersect(left: Automaton, right: Automaton) -> Automaton:
    def step(state: tuple[int, int]) -> tuple[list[tuple[int, int, tuple[int, int]]], bool]:
        a, b = state
        effort.spend(len(left.moves[a]) * len(right.moves[b]) // 4)
        found: list[tuple[int, int, tuple[int, int]]] = []
        for low, high, one in left.moves[a]:
            for start, stop, two in right.moves[b]:
                if max(low, start) <= min(high, stop):
                    found.append((max(low, start), min(high, stop), (one, two)))
        return found, a in left.ends and b in right.ends

    return explore((0, 0), step)


def complement(automaton: Automaton) -> Automaton:
    """Every text that `automaton` does not accept."""
    sink = len(automaton.moves)
    moves = []
    for row in (*automaton.moves, ()):
        ranges = charset.union((low, high) for low, high, _ in row)
        missing = charset.complement(ranges)
        moves.append([*row, *((low, high, sink) for low, high in missing)])
    return minimal(moves, set(range(sink + 1)) - automaton.ends)


def lengths(automaton: Automaton) -> tuple[int, int | None]:
    """Shortest and longest accepted text; None where there is no longest. Not for an empty one."""
    level, size, low, longest = {0}, 0, 0, 0
    is_found = False
    while level and size <= len(automaton.moves):
        effort.spend(len(level))
        if level & automaton.ends:
            low = low if is_found else size
            longest, is_found = size, True
        level = {t for state in level for _, _, t in automaton.moves[state]}
        size += 1
    return low, None if level else longest


def bounded(automaton: Automaton, low: int, high: int | None) -> Automaton:
    """The texts of `automaton` with `low` to `high` characters."""
    if automaton.is_empty:
        return automaton
    shortest, longest = lengths(automaton)
    if low <= shortest and (high is None or (longest is not None and longest <= high)):
        return automaton
    return intersect(automaton, of_length(low, high))


def wide_states(automaton: Automaton) -> int:
    """States that thousands of characters lead out of."""
    sizes = [sum(high - low + 1 for low, high, _ in row) for row in automaton.moves]
    return sum(size > 5000 for size in sizes)
