"""What else could have stood in a place of an output.

Owns: the finitely many values that a grammar allows in one place, which tokens of an output were a
choice. Must not know: log-probabilities, requests, the grammar engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from radixserve.grammar.track import State

MAX_ALTERNATIVES = 64
MAX_BYTES = 8192  # of all alternatives of one place
_BEHIND = frozenset(b",]} \t\r\n")  # what may stand behind a JSON value


def choices(start: State, pieces: Sequence[bytes]) -> list[bool]:
    """For each of an output's pieces whether the grammar left a choice in it: some byte of it was
    not the only one, or the output might have ended instead; of an empty piece, the end itself.

    Once the grammar's readings are too many to follow, every piece counts as a choice.
    """
    found: list[bool] = []
    state: State | None = start
    for piece in pieces:
        was_choice = not piece and state is not None and state.has_choice
        for byte in piece:
            was_choice = was_choice or state is None or state.has_choice
            state = None if state is None else state.step(byte)
        found.append(was_choice)
    return found


def values(start: State) -> list[bytes] | None:
    """Every JSON string, number or literal that may begin here, sorted; None where one may be an
    object or array, and where there are too many."""
    return _all(start, is_json=True)


def texts(start: State) -> list[bytes] | None:
    """Every whole output that may follow; None where there are too many."""
    return _all(start, is_json=False)


def _all(start: State, *, is_json: bool) -> list[bytes] | None:
    done: list[bytes] = []
    open_ends: list[tuple[State, bytes]] = [(start, b"")]
    spent = 0
    while open_ends:
        state, text = open_ends.pop()
        if state.lost:
            return None
        spent += 1
        if _may_be_over(state, text, is_json=is_json):
            done.append(text)
        following = b"" if is_json and _is_over(text) else state.next_bytes()
        if is_json and not text and (b"{" in following or b"[" in following):
            return None
        for byte in following:
            if is_json and byte in _BEHIND and not text.startswith(b'"'):
                continue  # a number or literal is over, or there is no value here
            after = state.step(byte)
            assert after is not None
            open_ends.append((after, text + bytes((byte,))))
        if len(done) + len(open_ends) > MAX_ALTERNATIVES or spent > MAX_BYTES:
            return None
    return sorted(done)


def _may_be_over(state: State, text: bytes, *, is_json: bool) -> bool:
    if not is_json:
        return state.may_end
    if not text:
        return False
    if text[0] == 0x22:
        return _is_over(text)
    return state.may_end or any(byte in _BEHIND for byte in state.next_bytes())


def _is_over(text: bytes) -> bool:
    """A whole JSON string: its last quote is not escaped."""
    if len(text) < 2 or text[0] != 0x22 or text[-1] != 0x22:
        return False
    body = text[1:-1]
    return (len(body) - len(body.rstrip(b"\\"))) % 2 == 0
