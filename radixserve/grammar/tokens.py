"""Text that a grammar has decided, as tokens.

Owns: which tokens spell a text, how many of them may be appended without asking the model. Must not
know: what a grammar is made of, requests, the grammar engine.
"""

from __future__ import annotations

import re
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence

import tokenizers

from radixserve.grammar.track import State

_NEVER = rb"(?!)"
_MAX_REST = 3  # bytes of a character behind its first


class Tokens:
    """The tokens of a vocabulary that may stand inside constrained text.

    token_bytes: by id. ordinary: ids that may stand there. tokenizer: the JSON of a `tokenizers`
    tokenizer that encodes text in the middle of an output, "" for none: then each token is the
    longest that fits. marks: texts that are a token of their own wherever they stand, which that
    tokenizer does not know.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        ordinary: Collection[int],
        tokenizer: str = "",
        marks: Mapping[bytes, int] | None = None,
    ) -> None:
        self._bytes = token_bytes
        self._ids: dict[bytes, int] = {}
        for token in sorted(ordinary):
            if token < len(token_bytes) and token_bytes[token]:
                self._ids.setdefault(token_bytes[token], token)
        self._sorted = sorted(self._ids)
        self.longest_token = max(map(len, self._sorted), default=0)
        self._ordinary = frozenset(ordinary)
        self._encoder = tokenizers.Tokenizer.from_str(tokenizer) if tokenizer else None
        self._marks = marks or {}
        self.has_marks = bool(self._marks)
        longest_first = sorted(self._marks, key=len, reverse=True)
        self._find_marks = re.compile(b"|".join(map(re.escape, longest_first)) or _NEVER)
        self._forced: weakref.WeakKeyDictionary[State, tuple[list[int], bytes]]
        self._forced = weakref.WeakKeyDictionary()
        self._endings: weakref.WeakKeyDictionary[State, list[int] | None]
        self._endings = weakref.WeakKeyDictionary()

    def encode(self, text: bytes) -> list[int] | None:
        """The tokenizer's own tokens of `text`; where they do not spell it exactly, the longest
        ones; None where no tokens do.

        Parts of characters at the edges are spelled apart: a tokenizer reads whole ones.
        """
        head, middle, tail = _whole_characters(text)
        parts = [self.longest(head), self._own(middle), self.longest(tail)]
        found: list[int] = []
        for part in parts:
            if part is None:
                return self.longest(text)
            found += part
        return found

    def longest(self, text: bytes) -> list[int] | None:
        """Each token the longest that fits, or, where that leads nowhere, the fewest tokens; None
        where no tokens spell `text`."""
        found: list[int] = []
        at = 0
        while at < len(text):
            fitting = self._fitting(text, at)
            if not fitting:
                return self._fewest(text)
            found.append(self._ids[text[at : at + fitting[0]]])
            at += fitting[0]
        return found

    def forced(self, state: State) -> tuple[list[int], State]:
        """Tokens to append without sampling, and the state behind them.

        They are those of the text that must follow, without the last ones where a longer token
        might have come: one that begins with their text and legally goes beyond it. Text behind
        which the output ends keeps all of them.
        """
        if state not in self._forced:
            self._forced[state] = self._find_forced(state)
        ids, text = self._forced[state]
        after = state.walk(text)
        assert after is not None
        return list(ids), after

    def ending(self, state: State) -> list[int] | None:
        """Tokens of one of the shortest texts that end the output; None where none is known or no
        tokens spell it."""
        if state not in self._endings:
            self._endings[state] = self._find_ending(state)
        found = self._endings[state]
        return None if found is None else list(found)

    def _find_ending(self, state: State) -> list[int] | None:
        if state.lost:
            return None
        text = state.ending()
        ways = [way for way in (self.encode(text), self.longest(text)) if way is not None]
        return min(ways, key=len, default=None)

    def _find_forced(self, state: State) -> tuple[list[int], bytes]:
        head, text, _ = _whole_characters(state.forced)
        ids = None if head or not text else self.encode(text)
        if ids is None:
            return [], b""
        after = state.walk(text)
        assert after is not None
        if not after.must_end:
            ids = ids[: self._certain(ids, text, after)]
        return ids, text[: sum(len(self._bytes[token]) for token in ids)]

    def _certain(self, ids: list[int], text: bytes, after: State) -> int:
        """How many of `ids` would also be there if `text` went on."""
        certain = len(ids)
        at = len(text)
        for i in range(len(ids) - 1, -1, -1):
            at -= len(self._bytes[ids[i]])
            if len(text) - at >= self.longest_token:
                break
            if self._goes_beyond(text[at:], after):
                certain = i
        return certain

    def _goes_beyond(self, text: bytes, state: State) -> bool:
        """Some token begins with `text` and goes on as `state`, behind that text, allows."""
        stack = [(bisect_right(self._sorted, text), text, state)]
        while stack:
            i, begin, state = stack.pop()
            while i < len(self._sorted) and self._sorted[i].startswith(begin):
                longer = self._sorted[i][: len(begin) + 1]
                after = state.step(longer[-1])
                if after is not None:
                    if longer in self._ids:
                        return True
                    stack.append((i, longer, after))
                if longer[-1] == 0xFF:
                    break
                i = bisect_left(self._sorted, begin + bytes([longer[-1] + 1]), i)
        return False

    def _own(self, text: bytes) -> list[int] | None:
        """The marks in `text`, and what is between them as tokens."""
        found: list[int] = []
        at = 0
        for mark in self._find_marks.finditer(text):
            between = self._plain(text[at : mark.start()])
            if between is None:
                return None
            found += [*between, self._marks[mark[0]]]
            at = mark.end()
        rest = self._plain(text[at:])
        return None if rest is None else found + rest

    def _plain(self, text: bytes) -> list[int] | None:
        """The tokenizer's tokens, if they are ordinary and spell exactly `text`."""
        if self._encoder is None or not text:
            return self.longest(text)
        ids: list[int] = self._encoder.encode(text.decode(), add_special_tokens=False).ids
        if not self._ordinary.issuperset(ids):
            return None
        return ids if b"".join(self._bytes[token] for token in ids) == text else None

    def _fitting(self, text: bytes, at: int) -> list[int]:
        """The sizes of the tokens that `text` has at a place, longest first."""
        found = []
        size = min(self.longest_token, len(text) - at)
        while size:
            window = text[at : at + size]
            i = bisect_right(self._sorted, window) - 1
            if i < 0:
                break
            near = self._sorted[i]
            size = _common(near, window)
            if size == len(near):
                found.append(size)
                size -= 1
        return found

    def _fewest(self, text: bytes) -> list[int] | None:
        best: list[tuple[int, int] | None] = [None] * len(text) + [(0, 0)]  # tokens, first size
        for at in range(len(text) - 1, -1, -1):
            for size in self._fitting(text, at):
                rest = best[at + size]
                if rest is not None and ((own := best[at]) is None or rest[0] + 1 < own[0]):
                    best[at] = rest[0] + 1, size
        found: list[int] = []
        at = 0
        while at < len(text):
            step = best[at]
            if step is None:
                return None
            found.append(self._ids[text[at : at + step[1]]])
            at += step[1]
        return found


def _common(left: bytes, right: bytes) -> int:
    """Length of the longest common beginning."""
    if right.startswith(left):
        return len(left)
    return next((i for i, (a, b) in enumerate(zip(left, right)) if a != b), len(right))


def _whole_characters(text: bytes) -> tuple[bytes, bytes, bytes]:
    """`text` as the rest of a character, whole characters, and the begin of one; what is no UTF-8
    at all counts as the first."""
    start = 0
    while start < min(len(text), _MAX_REST) and text[start] & 0xC0 == 0x80:
        start += 1
    end = len(text)
    try:
        text[start:].decode()
    except UnicodeDecodeError as error:
        if start + error.end != end or error.reason != "unexpected end of data":
            return text, b"", b""
        end = start + error.start
    return text[:start], text[start:end], text[end:]
