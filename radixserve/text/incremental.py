"""Token ids to text while they arrive.

Owns: cutting the output into pieces of whole characters, and holding back what may turn out to be
a stop string. Must not know: the tokenizer, requests. Whether the output has stopped is the
engine's word (finish); this file only keeps what must not be shown until then.
"""

from __future__ import annotations

import bisect
import codecs
from collections.abc import Mapping, Sequence


def output_bytes(
    token_bytes: Sequence[bytes],
    special_bytes: Mapping[int, bytes],
    token: int,
    skip_special: bool,
) -> bytes:
    """The exact bytes that `token` adds to the output; none for ids outside the table.

    Joined over an output they are its UTF-8, also where a character spans tokens.
    """
    if token in special_bytes:
        return b"" if skip_special else special_bytes[token]
    return token_bytes[token] if 0 <= token < len(token_bytes) else b""


class Detokenizer:
    """The text of one output, piece by piece.

    token_bytes: by id. special_bytes: texts of control tokens, shown only with
    skip_special=False, those of `spelt` always. stops: UTF-8 of the stop strings, none empty.
    keep_stop: the stop string is part of the text.

    Offsets count the bytes of tokens that are no control tokens, as the engine does: a stop string
    goes on behind a control token, and shows it if it is shown at all.

    The pieces that push() and finish() return, joined, are the output up to the engine's cut;
    nothing behind the cut ever gets out. The engine sends no tokens after those that complete a
    stop string: if more arrive, it did not count as one (too early, say), and the text goes on.

    Worked example, stops (b"aab",): push gives "x" for "x", "" for "a", "" for "a", "a" for "a"
    (the tail "aa" may still become "aab"), "" for "b", and finish(2) gives "".
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        special_bytes: Mapping[int, bytes],
        *,
        stops: tuple[bytes, ...] = (),
        skip_special: bool = True,
        keep_stop: bool = False,
        spelt: frozenset[int] = frozenset(),
    ) -> None:
        self._token_bytes = token_bytes
        self._special_bytes = special_bytes
        self._skip_special = skip_special
        self._spelt = spelt
        self._keep_stop = keep_stop
        self._watches = [_StopWatch(stop) for stop in stops]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = bytearray()
        self._held_from = 0  # place of _held in what is shown
        self._ends: list[int] = []  # offset behind each token
        self._controls: list[int] = []  # offset of each control token that is shown
        self._shown: list[int] = [0]  # bytes of the first n of them

    def push(self, ids: Sequence[int]) -> str:
        """New text after the tokens `ids`; "" while all of it is held back, and for no ids."""
        if not ids:
            return ""
        start = end = self._end
        for token in ids:
            skips = self._skip_special and token not in self._spelt
            piece = output_bytes(self._token_bytes, self._special_bytes, token, skips)
            self._held += piece
            if token in self._special_bytes:
                self._controls.append(end)
                self._shown.append(self._shown[-1] + len(piece))
            else:
                end += len(piece)
            self._ends.append(end)
        fresh = self._plain(ids) if self._watches else b""
        return self._release(self._safe_end(fresh, start, end))

    def finish(self, kept_bytes: int | None) -> str:
        """The rest of the text.

        kept_bytes: offset in the whole output, in bytes, where the stop string begins that ended
        it; None when none did. A character that is cut there becomes U+FFFD.
        """
        end = self._end
        if kept_bytes is not None:
            end = min(end, self._cut(kept_bytes))
        return self._release(end) + self._decoder.decode(b"", final=True)

    def kept_tokens(self, kept_bytes: int) -> int:
        """How many output tokens end at or before offset `kept_bytes`."""
        return bisect.bisect_right(self._ends, kept_bytes)

    @property
    def _end(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _plain(self, ids: Sequence[int]) -> bytes:
        return b"".join(
            output_bytes(self._token_bytes, self._special_bytes, token, True) for token in ids
        )

    def _safe_end(self, fresh: bytes, start: int, end: int) -> int:
        """Offset up to which the output can be shown, whatever follows."""
        for watch in self._watches:
            watch.feed(fresh, start)
            if watch.match_end is not None:
                matched = watch.match_end if self._keep_stop else watch.match_end - len(watch.stop)
                end = min(end, matched)
            elif not self._keep_stop:
                end = min(end, start + len(fresh) - watch.matched)
        return end

    def _cut(self, kept_bytes: int) -> int:
        if not self._keep_stop:
            return kept_bytes
        ends = [
            watch.match_end
            for watch in self._watches
            if watch.match_end is not None and watch.match_end - len(watch.stop) == kept_bytes
        ]
        return min(ends, default=kept_bytes)

    def _release(self, end: int) -> str:
        shown = end + self._shown[bisect.bisect_right(self._controls, end)]
        n = max(0, shown - self._held_from)
        text = self._decoder.decode(bytes(self._held[:n]))
        del self._held[:n]
        self._held_from += n
        return text


class _StopWatch:
    """Finds one stop string in a stream of bytes, looking at each byte about once.

    matched: length of the longest beginning of `stop` that the stream ends with, never all of it.
    match_end: offset behind the first whole match that the last feed() completed, or None.
    """

    def __init__(self, stop: bytes) -> None:
        self.stop = stop
        self.matched = 0
        self.match_end: int | None = None
        self._fallback = _borders(stop)

    def feed(self, fresh: bytes, start: int) -> None:
        self.match_end = None
        for i, byte in enumerate(fresh):
            while self.matched and self.stop[self.matched] != byte:
                self.matched = self._fallback[self.matched - 1]
            if self.stop[self.matched] == byte:
                self.matched += 1
            if self.matched == len(self.stop):
                if self.match_end is None:
                    self.match_end = start + i + 1
                self.matched = self._fallback[self.matched - 1]


def _borders(word: bytes) -> list[int]:
    """[i]: length of the longest proper beginning of word[: i + 1] that also ends it."""
    borders = [0] * len(word)
    k = 0
    for i in range(1, len(word)):
        while k and word[i] != word[k]:
            k = borders[k - 1]
        if word[i] == word[k]:
            k += 1
        borders[i] = k
    return borders
