"""Reasoning before an answer: its tags as both sides of the border know them.

Owns: Reasoning, and Follower, the one place that says where in the bytes of an output reasoning
begins and ends. Must not know: chat templates, grammars, requests.
"""

from __future__ import annotations

from typing import AnyStr, Literal

import msgspec

Start = Literal["open", "either"]
Phase = Literal["before", "inside", "behind", "none"]
BLANKS = " \t\r\n"  # those that stand around tags


class Reasoning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one output may reason.

    begin, end: the tags in UTF-8. begin_ids, end_ids: the model's own tokens of them. start: "open"
    where the output begins inside of the reasoning, "either" where it may begin with `begin` or is
    an answer. gap: what stands between the end tag and an answer that is bound to a constraint;
    gap_ids[n]: the tokens of what is left of it behind its first n bytes, from 0 to len(gap).
    spelt: control tokens among the tags, with their text. budget: most tokens of reasoning, then it
    is ended; None: as many as there is room for.
    """

    begin: bytes
    end: bytes
    begin_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    start: Start
    gap: bytes = b""
    gap_ids: tuple[tuple[int, ...], ...] = ((),)
    spelt: dict[int, bytes] = {}
    budget: int | None = None


class Follower:
    """Fed the bytes of one output, control tokens of the tags spelled.

    phase: "before" until it shows whether the output reasons, "inside" of reasoning, "behind" its
    end tag, "none" for an output that does not reason. size: bytes so far. begin_at: where
    reasoning begins, behind the tag. end_at: where the end tag begins. answer_at: where the answer
    begins; each is None before that is known.

    Blanks may stand before the begin tag. An end tag without a begin tag ends nothing, unless the
    output began inside. Behind the end tag nothing is looked at any more.
    """

    __slots__ = ("_begin", "_end", "_held", "answer_at", "begin_at", "end_at", "phase", "size")

    def __init__(self, begin: bytes, end: bytes, start: Start) -> None:
        self._begin = begin
        self._end = end
        self._held = b""
        self.phase: Phase = "inside" if start == "open" else "before"
        self.size = 0
        self.begin_at: int | None = 0 if start == "open" else None
        self.end_at: int | None = None
        self.answer_at: int | None = None

    @property
    def matched(self) -> int:
        """How many bytes of the end tag the reasoning ends with, never all of them."""
        return len(self._held) if self.phase == "inside" else 0

    def feed(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.phase in ("behind", "none"):
            return
        self._held += piece
        if self.phase == "before":
            self._open()
        if self.phase == "inside":
            self._close()

    def _open(self) -> None:
        text = self._held.lstrip(BLANKS.encode())
        if text.startswith(self._begin):
            self._held = text[len(self._begin) :]
            self.begin_at = self.size - len(self._held)
            self.phase = "inside"
        elif not self._begin.startswith(text):
            self._held = b""
            self.answer_at = 0
            self.phase = "none"

    def _close(self) -> None:
        at = self._held.find(self._end)
        if at >= 0:
            self.end_at = self.size - len(self._held) + at
            self.answer_at = self.end_at + len(self._end)
            self._held = b""
            self.phase = "behind"
            return
        self._held = self._held[len(self._held) - overlap(self._held, self._end) :]


def overlap(text: AnyStr, mark: AnyStr) -> int:
    """The longest end of `text` with which `mark` may begin; never all of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
