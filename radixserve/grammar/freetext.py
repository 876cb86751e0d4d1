"""Free text up to the first of some texts, as rules.

Owns: the automaton that knows how much of a text stands at the end. Must not know: tags, JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from radixserve.grammar import charset
from radixserve.grammar.charset import Ranges
from radixserve.grammar.rules import EMPTY, NEVER, Chars, Expr, Ref, alt, repeat, seq

MAX_CHARS = 20_000  # of all texts together


class TooLong(ValueError):
    """The texts are too many, or too long."""


def free_text(
    table: dict[str, Expr], name: str, stops: Mapping[str, Expr], *, may_end: bool, most: int
) -> tuple[Expr, int]:
    """Text in which no text of `stops` stands, other than at its end; there its expression
    follows, NEVER where the text must not stand at all. Where one ends with another, either may
    follow, but NEVER wins. may_end: the text may end without any of them. Returns the expression,
    and how many moves the automaton has; more than `most` raise TooLong.

    Writes rules name0, name1 .. into `table`. Worked example: stops {"ab": x} make
    name0 ::= [^a]* ("a" name1), name1 ::= "a"* ("b" x | [^ab] name0).
    """
    found = _Ends(stops)
    names = {0: f"{name}0"}
    queue = [0]
    count = 0
    for state in queue:
        options: list[Expr] = [EMPTY] if may_end else []
        loop: Expr = EMPTY
        moves = found.moves(state)
        count += len(moves)
        if count > most:
            raise TooLong("begins, ends and triggers are too many, or too long")
        for target, ranges in moves.items():
            if target == state:
                loop = repeat(Chars(ranges), 0, None)
                continue
            ended = found.ended[target]
            if not ended:
                if target not in names:
                    names[target] = f"{name}{len(names)}"
                    queue.append(target)
                options.append(seq(Chars(ranges), Ref(names[target])))
            elif (after := _joined(stops[text] for text in ended)) != NEVER:
                options.append(seq(Chars(ranges), after))
        table[names[state]] = seq(loop, alt(*options))
    return Ref(names[0]), count


def _joined(options: Iterable[Expr]) -> Expr:
    found = list(options)
    return NEVER if NEVER in found else alt(*found)


class _Ends:
    """What a text ends with: state 0 is nothing of any; ended: the texts that are whole there."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self.ended: list[tuple[str, ...]] = [()]
        for text in texts:
            self._add(text)
        self._shorter = [0] * len(self._next)
        self._link()

    def _add(self, text: str) -> None:
        state = 0
        for char in text:
            if char not in self._next[state]:
                if len(self._next) > MAX_CHARS:
                    raise TooLong(f"more than {MAX_CHARS} characters of begins, ends and triggers")
                self._next[state][char] = len(self._next)
                self._next.append({})
                self.ended.append(())
            state = self._next[state][char]
        self.ended[state] = (text,)

    def _link(self) -> None:
        """Find for each state the one of the longest end that is shorter."""
        queue = list(self._next[0].values())
        for state in queue:
            for char, target in self._next[state].items():
                shorter = self._after(self._shorter[state], char)
                self._shorter[target] = shorter
                self.ended[target] += self.ended[shorter]
                queue.append(target)

    def _after(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(char, 0)

    def moves(self, state: int) -> dict[int, Ranges]:
        """The characters that lead from here to each state."""
        known: dict[str, int] = {}
        at = state
        while True:
            for char, target in self._next[at].items():
                known.setdefault(char, target)
            if not at:
                break
            at = self._shorter[at]
        found: dict[int, list[tuple[int, int]]] = {}
        for char, target in known.items():
            found.setdefault(target, []).append((ord(char), ord(char)))
        mentioned = charset.union((ord(char), ord(char)) for char in known)
        found.setdefault(0, []).extend(charset.complement(mentioned))
        return {target: charset.union(ranges) for target, ranges in found.items() if ranges}
