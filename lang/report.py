"""Showing what a program did: its calls as a table, its text with where it came from.

Owns: the terminal and the HTML view. Must not know: states, backends.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from radixserve.lang.history import CallReport, Piece

_COLUMNS = (
    "call", "name", "prompt", "cached", "computed", "output", "ms", "waited", "constraint", "end"
)  # fmt: skip
_PREVIEW = 40
_ANSI = {"constant": "", "mark": "\x1b[2m", "generated": "\x1b[32m", "selected": "\x1b[36m"}
_ANSI_CACHED, _ANSI_END = "\x1b[44m", "\x1b[0m"
_CSS = """.radixserve{font-family:monospace;white-space:pre-wrap}.radixserve .mark{opacity:.5}
.radixserve .generated{background:#c8e6c9;color:#000}
.radixserve .selected{background:#b2ebf2;color:#000}
.radixserve .cached{border-bottom:2px solid #42a5f5}
.radixserve .forced{border-bottom:2px dotted #ef6c00}"""


@dataclass(frozen=True, slots=True)
class Explanation:
    """calls: those of the whole run, in the order they ended. pieces: the text of one state.

    print() shows the table; show() the text in colours, html() the same for a browser; a notebook
    shows html() by itself.
    """

    calls: Sequence[CallReport]
    pieces: Sequence[Piece]

    def __str__(self) -> str:
        rows = [_row(each) for each in sorted(self.calls, key=lambda each: _place(each.call))]
        table = [_COLUMNS, *rows]
        widths = [max(len(row[i]) for row in table) for i in range(len(_COLUMNS))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in table]
        total = (
            f"{len(self.calls)} calls, {sum(each.prompt_tokens for each in self.calls)} prompt "
            f"tokens, {sum(each.cached_tokens for each in self.calls)} of them cached, "
            f"{sum(each.computed_tokens for each in self.calls)} computed; "
            f"{sum(each.completion_tokens for each in self.calls)} output tokens"
        )
        return "\n".join([*lines, total])

    def show(self) -> str:
        """The text for a terminal: output green, choices cyan, what was cached on blue."""
        out = []
        for piece in self.pieces:
            for text, is_cached in _halves(piece):
                codes = _ANSI[piece.origin] + (_ANSI_CACHED if is_cached else "")
                out.append(f"{codes}{text}{_ANSI_END}" if codes else text)
        return "".join(out)

    def html(self) -> str:
        """The text for a browser, each stretch with its call and tokens as a tooltip."""
        spans = "".join(_span(piece) for piece in self.pieces)
        table = html.escape(str(self))
        return f'<style>{_CSS}</style><div class="radixserve">{spans}</div><pre>{table}</pre>'

    def _repr_html_(self) -> str:
        return self.html()


def _row(each: CallReport) -> tuple[str, ...]:
    forced = f" ({each.forced_tokens} forced)" if each.forced_tokens else ""
    tries = f" after {each.tries} tries" if each.tries > 1 else ""
    return (
        each.call,
        each.name or "",
        str(each.prompt_tokens),
        str(each.cached_tokens),
        str(each.computed_tokens),
        f"{each.completion_tokens}{forced}",
        f"{each.seconds * 1000:.1f}",
        f"{each.waited * 1000:.1f}",
        each.constraint or "",
        (each.error or each.finish or "")[:_PREVIEW] + tries,
    )


def _place(call: str) -> tuple[int, ...]:
    return tuple(int(part) for part in call.split("."))


def _halves(piece: Piece) -> Iterator[tuple[str, bool]]:
    """The cached beginning and the rest; the border lies by proportion inside a piece."""
    cut = len(piece.text) * piece.cached // piece.tokens if piece.tokens else 0
    for text, is_cached in ((piece.text[:cut], True), (piece.text[cut:], False)):
        if text:
            yield text, is_cached


def _span(piece: Piece) -> str:
    return "".join(
        f'<span class="{" ".join(_classes(piece, is_cached))}" title="{_title(piece)}">'
        f"{html.escape(text)}</span>"
        for text, is_cached in _halves(piece)
    )


def _classes(piece: Piece, is_cached: bool) -> Iterable[str]:
    yield piece.origin
    if is_cached:
        yield "cached"
    if piece.forced:
        yield "forced"


def _title(piece: Piece) -> str:
    if piece.tokens is None:
        return f"{piece.origin}, not sent"
    forced = f", {piece.forced} forced" if piece.forced else ""
    return (
        f"{piece.origin}, call {piece.call}: {piece.tokens} tokens, {piece.cached} cached{forced}"
    )
