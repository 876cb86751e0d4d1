"""Regular expressions that end an output.

Owns: reading them into automata, so that matching takes a step for each character, whatever the
pattern. Must not know: where the text comes from.
"""

from __future__ import annotations

from radixserve.errors import InvalidRequest
from radixserve.grammar import effort
from radixserve.grammar.automaton import TooLarge, from_regex
from radixserve.grammar.regex import RegexError
from radixserve.wire.params import MAX_STOP_BYTES, MAX_STOPS, StopPattern

MAX_MOVES = 10_000
MAX_STEPS = 200_000  # of reading all patterns of a body: other bodies wait for the thread


def stop_patterns(given: str | list[str], param: str) -> tuple[StopPattern, ...]:
    """The patterns of a body; empty ones ask for nothing. Takes some tenths of a second for the
    worst. Raises InvalidRequest for what cannot be read, has too many states, or takes too long."""
    texts = [text for text in ([given] if isinstance(given, str) else given) if text]
    if len(texts) > MAX_STOPS:
        raise InvalidRequest(
            f"{param} has {len(texts)} entries, at most {MAX_STOPS} are possible", param=param
        )
    try:
        with effort.limited(MAX_STEPS):
            return tuple(_pattern(text, param) for text in texts)
    except effort.Exhausted as error:
        raise InvalidRequest(f"{param} takes {error} to read", param=param) from None


def _pattern(text: str, param: str) -> StopPattern:
    if len(text) > MAX_STOP_BYTES:
        raise InvalidRequest(f"{param} is longer than {MAX_STOP_BYTES} characters", param=param)
    try:
        found = from_regex(text, search=True)
    except (RegexError, TooLarge) as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from None
    if sum(map(len, found.moves)) > MAX_MOVES:
        raise InvalidRequest(f"{param} has too many states", param=param)
    if 0 in found.ends:
        raise InvalidRequest(f"{param} matches the empty text", param=param)
    if found.is_empty:
        raise InvalidRequest(f"{param} matches nothing", param=param)
    return StopPattern(text, found.moves, tuple(sorted(found.ends)))
