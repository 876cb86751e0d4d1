"""Follows an output through a grammar, byte by byte, and knows the shortest way to its end.

Owns: which continuations an output has (all of them, side by side), what must follow, what may end.
Must not know: tokens, schemas, the grammar engine.

A place is what is still to come: an item and the place behind it. Places are interned, so that an
output in a nested value is a chain of places that its neighbours share, and nothing here recurses
over that chain. Where an output can be read in several ways up to one item, the places behind that
item are joined, so that it is followed once. A state is the set of places that can read the next
byte. States remember their steps; what is remembered is bounded and dropped as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from radixserve.grammar import items, rules
from radixserve.grammar.items import Call, Choice, Item, Loop, Lowered, Node, Pair

MAX_FORCED = 4096  # bytes
MAX_PLACES = 60_000
MAX_STATES = 20_000
MAX_WIDTH = 2048  # places in one state
MAX_MERGED = 8  # items behind one another
MAX_VISITS = 4 * MAX_WIDTH  # places looked at for one state


class _Place:
    """needs: fewest bytes from here to the end of the output. is_open: it reads a byte, or is the
    end; others stand for the places in `opened`, None until that is asked for."""

    __slots__ = ("is_open", "item", "needs", "opened", "rest", "state")

    def __init__(self, item: Item | None, rest: _Place | None, needs: int) -> None:
        self.item = item
        self.rest = rest
        self.needs = needs
        self.is_open = item is None or (isinstance(item, Node) and not item.ends)
        self.opened: tuple[_Place, ...] | None = None
        self.state: State | None = None


class _Join(_Place):
    """Several places behind one item: however an output can be read up to here, what follows is
    followed once."""

    __slots__ = ("members",)

    def __init__(self, members: tuple[_Place, ...]) -> None:
        super().__init__(None, None, min(place.needs for place in members))
        self.is_open = False
        self.members = members


class State:
    """Where an output stands in a grammar. Immutable to its users.

    lost: the grammar has too many readings of the output to follow; nothing is known any more, and
    every step leads here again. needs: fewest bytes to an end, 0 exactly where the output may end;
    None when lost.
    """

    __slots__ = (
        "__weakref__",
        "_forced",
        "_moves",
        "_readers",
        "_track",
        "lost",
        "may_end",
        "needs",
    )

    def __init__(self, track: Track, places: tuple[_Place, ...], end: _Place) -> None:
        self._track = track
        self.lost = not places
        self.may_end = end in places
        self._readers = places
        if self.may_end:
            self._readers = tuple(place for place in places if place is not end)
        self.needs = None if self.lost else min([place.needs for place in places])
        self._moves: dict[int, State | None] = {}
        self._forced: bytes | None = None

    @property
    def must_end(self) -> bool:
        """The output is whole and nothing can follow."""
        return self.may_end and not self._readers

    @property
    def has_choice(self) -> bool:
        """More than one byte may follow, or the output may end as well as go on; also where that is
        not known."""
        return not self.must_end and self._only_byte() is None

    def next_bytes(self) -> bytes:
        """Every byte that may follow. Takes some time where there are several."""
        only = self._only_byte()
        if only is not None:
            return bytes((only,))
        return bytes(byte for byte in range(256) if self.step(byte) is not None)

    def step(self, byte: int) -> State | None:
        """The state behind one more byte; None when no output goes on with it."""
        try:
            return self._moves[byte]
        except KeyError:
            return self._first_step(byte)

    def walk(self, text: bytes) -> State | None:
        """The state behind `text`; None when no output goes on with it."""
        state = self
        for byte in text:
            try:
                after = state._moves[byte]
            except KeyError:
                after = state._first_step(byte)
            if after is None:
                return None
            state = after
        return state

    @property
    def forced(self) -> bytes:
        """What must follow: to where the output may end or has a choice, MAX_FORCED bytes at
        most."""
        if self._forced is None:
            self._forced = self._find_forced()
        return self._forced

    def ending(self) -> bytes:
        """One of the shortest texts that end the output: of length `needs`, the same every time,
        letters and digits before other characters. Raises ValueError when lost."""
        if self.needs is None:
            raise ValueError("nothing is known of a lost state")
        return self._track.ending(self._readers, self.needs)

    def _find_forced(self) -> bytes:
        out = bytearray()
        state = self
        while len(out) < MAX_FORCED and (byte := state._only_byte()) is not None:
            after = state.step(byte)
            assert after is not None
            out.append(byte)
            state = after
        return bytes(out)

    def _only_byte(self) -> int | None:
        if self.may_end or self.lost:
            return None
        found = {place.item.only for place in self._readers if isinstance(place.item, Node)}
        return found.pop() if len(found) == 1 else None

    def _first_step(self, byte: int) -> State | None:
        after = self if self.lost else self._track.step(self._readers, byte)
        self._moves[byte] = after
        return after

    def forget(self) -> None:
        """Drop what this state remembers of others."""
        self._moves = {}
        self._forced = None


class Track:
    """A grammar, ready to follow outputs. For one thread at a time."""

    def __init__(self, grammar: rules.Grammar) -> None:
        self._lowered = Lowered(grammar)
        self._end = _Place(None, None, 0)
        self._places: dict[tuple[Item, _Place], _Place] = {}
        self._joins: dict[frozenset[_Place], _Join] = {}
        self._states: dict[frozenset[_Place], State] = {}
        self._lost = State(self, (), self._end)
        self.start = self._state_at(self._place(self._lowered.rule("root"), self._end))

    @classmethod
    def of(cls, grammar: rules.Grammar) -> Track | None:
        """None for a grammar without texts, and where a rule begins with itself."""
        if grammar.is_empty or items.begins_with_itself(grammar):
            return None
        return cls(grammar)

    @property
    def remembered(self) -> int:
        """Places and states kept for later steps."""
        return len(self._places) + len(self._joins) + len(self._states)

    def step(self, readers: tuple[_Place, ...], byte: int) -> State | None:
        """The state of those `readers` that can read `byte`."""
        if len(self._places) + len(self._joins) > MAX_PLACES or len(self._states) > MAX_STATES:
            self._forget()
        found = self._after(readers, byte)
        if not found:
            return None
        return self._state_at(found[0]) if len(found) == 1 else self._state_of(found)

    def ending(self, readers: tuple[_Place, ...], needs: int) -> bytes:
        """See State.ending."""
        out = bytearray()
        while needs:
            best = [place for place in readers if place.needs == needs]
            text, after = self._shortest(best)
            out += text
            needs -= len(text)
            readers = self._opened_all(place for place in after if place.needs == needs) or ()
        return bytes(out)

    def _shortest(self, best: list[_Place]) -> tuple[bytes, list[_Place]]:
        """What the best of these readers read next, and the places behind that."""
        # Where a node may be over, what is behind it needs no further byte of the node.
        nodes = [place.item for place in best if isinstance(place.item, Node)]
        if len(best) == 1 and best[0].rest is not None and (tail := nodes[0].tail):
            return tail, [best[0].rest]
        byte = min((node.shortest for node in nodes if not node.ends), key=items.preference)
        return bytes((byte,)), self._after(best, byte)

    def _after(self, readers: Iterable[_Place], byte: int) -> list[_Place]:
        found: dict[_Place, None] = {}
        for place in readers:
            node, rest = place.item, place.rest
            assert isinstance(node, Node)
            assert rest is not None
            onward = node.after(byte)
            if onward is not None:
                found[rest if onward is items.DONE else self._place(onward, rest)] = None
        return list(found) if len(found) < 2 else self._merged(found, 0)

    def _merged(self, places: Iterable[_Place], depth: int) -> list[_Place]:
        """The same places with one for each item; what stands behind those of an item is joined,
        and merged likewise down to a depth."""
        by_item: dict[Item | None, list[_Place]] = {}
        for place in places:
            for member in place.members if isinstance(place, _Join) else (place,):
                by_item.setdefault(member.item, []).append(member)
        found = []
        for item, same in by_item.items():
            if len(same) == 1 or item is None:
                found.append(same[0])
                continue
            rests = dict.fromkeys(place.rest for place in same if place.rest is not None)
            behind = self._merged(rests, depth + 1) if depth < MAX_MERGED else list(rests)
            found.append(self._place(item, self._join(behind)))
        return found

    def _join(self, places: list[_Place]) -> _Place:
        if len(places) == 1:
            return places[0]
        key = frozenset(places)
        found = self._joins.get(key)
        if found is None:
            found = self._joins[key] = _Join(tuple(places))
        return found

    def _place(self, item: Item, rest: _Place) -> _Place:
        key = (item, rest)
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = _Place(item, rest, item.least + rest.needs)
        return found

    def _state_at(self, place: _Place) -> State:
        if place.state is None:
            place.state = self._state_of((place,))
        return place.state

    def _state_of(self, places: Iterable[_Place]) -> State:
        opened = self._opened_all(places)
        if opened is None:
            return self._lost
        key = frozenset(opened)
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = State(self, opened, self._end)
        return found

    def _opened_all(self, places: Iterable[_Place]) -> tuple[_Place, ...] | None:
        """The places that read a byte next, and the end; None when they are too many."""
        found: dict[_Place, None] = {}
        for place in places:
            if place.is_open:
                found[place] = None
                continue
            if place.opened is None:
                place.opened = self._counted(place) or self._opened(place)
                if place.opened is None:
                    return None
            for inner in place.opened:
                found[inner] = None
            if len(found) > MAX_WIDTH:
                return None
        return tuple(found)

    def _counted(self, place: _Place) -> tuple[_Place, ...] | None:
        """What _opened says, sooner, for characters that are counted."""
        item, rest = place.item, place.rest
        if not isinstance(item, Loop) or not isinstance(item.part, Node) or item.part.ends:
            return None
        assert rest is not None
        less = item.less()
        again = self._place(item.part, rest if less is None else self._place(less, rest))
        if item.low:
            return (again,)
        if rest.is_open:
            return (again, rest)
        if rest.opened is None:
            rest.opened = self._opened(rest)
        return None if rest.opened is None else (again, *rest.opened)

    def _opened(self, start: _Place) -> tuple[_Place, ...] | None:
        found: dict[_Place, None] = {}
        seen = {start}
        stack = [start]
        while stack:
            place = stack.pop()
            if place.is_open:
                found[place] = None
                continue
            if place.opened is not None:
                found.update(dict.fromkeys(place.opened))
                continue
            for inner in self._within(place, found):
                if inner not in seen:
                    seen.add(inner)
                    stack.append(inner)
            if len(seen) > MAX_VISITS:
                return None
        return tuple(found)

    def _within(self, place: _Place, found: dict[_Place, None]) -> Iterable[_Place]:
        """What a place stands for; one that also reads a byte itself goes into `found`."""
        if isinstance(place, _Join):
            return place.members
        item, rest = place.item, place.rest
        assert item is not None
        assert rest is not None
        match item:
            case Node():
                if item is not items.DONE:
                    found[place] = None
                return (rest,)
            case Pair():
                return (self._place(item.first, self._place(item.second, rest)),)
            case Choice():
                return [self._place(option, rest) for option in reversed(item.options)]
            case Loop():
                less = item.less()
                behind = rest if less is None else self._place(less, rest)
                again = self._place(item.part, behind)
                return (rest, again) if item.low == 0 else (again,)
            case Call():
                return (self._place(self._lowered.rule(item.name), rest),)

    def _forget(self) -> None:
        """States that are held stay valid; they work out their steps anew."""
        for state in self._states.values():
            state.forget()
        for place in (*self._places.values(), *self._joins.values()):
            place.opened = place.state = None
        self._joins.clear()
        self._states.clear()
        self._places.clear()
        self._lowered.forget()
