"""The mock's tokens: a byte, or one of the pieces it is given (the longest that fits).

Owns: ids and texts of each other, what the parts of a prompt come to. Must not know: replies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from radixserve.lang.errors import BackendError

BOS, END = 256, 257
_MARKS = {
    BOS: "<bos>",
    END: "<end>",
    258: "<system>",
    259: "<user>",
    260: "<assistant>",
    261: "<tool>",
}
_OPENS = {"system": 258, "user": 259, "assistant": 260, "tool": 261}
_FIRST_PIECE = 300


@dataclass(frozen=True, slots=True)
class MockTokenizer:
    """Bytes are ids 0..255; piece i is id 300 + i; marks of the prompt are 256..261."""

    pieces: tuple[str, ...] = ()

    def encode(self, text: str) -> list[int]:
        data, ids, at = text.encode(), [], 0
        encoded = [piece.encode() for piece in self.pieces]
        while at < len(data):
            fits = [i for i, piece in enumerate(encoded) if data.startswith(piece, at)]
            best = max(fits, key=lambda i: len(encoded[i]), default=None)
            ids.append(data[at] if best is None else _FIRST_PIECE + best)
            at += 1 if best is None else len(encoded[best])
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self._bytes(each) for each in ids).decode(errors="replace")

    def _bytes(self, token: int) -> bytes:
        if token >= _FIRST_PIECE:
            return self.pieces[token - _FIRST_PIECE].encode()
        return bytes([token]) if token < BOS else _MARKS[token].encode()

    def read(self, parts: list[dict[str, Any]], *, bos: bool = False) -> dict[str, Any]:
        """The prompt that parts come to, as replies tell it: {"ids", "roles", "open"}. Each segment
        of text is tokenised alone. bos: a prompt from nothing begins with BOS."""
        ids: list[int] = [BOS] if bos and not (parts and "ids" in parts[0]) else []
        roles: list[str] = []
        opened: str | None = None
        for part in parts:
            match part:
                case {"ids": known, "roles": roles, "open": opened}:
                    ids, roles = [*ids, *known], list(roles)
                case {"tools": tools} if any("ids" in each for each in parts):
                    pass  # they stand in the ids
                case {"tools": tools}:
                    ids += self.encode(f"<tools>{json.dumps(tools)}</tools>")
                case {"text": text}:
                    ids += self.encode(text)
                case {"role_open": opened}:
                    ids.append(_OPENS[opened])
                case {"role_close": role}:
                    ids.append(END)
                    roles, opened = [*roles, role], None
                case {"border": True}:
                    pass
                case _:
                    raise BackendError(400, "invalid_request", f"unknown part {part!r}", "input")
        return {"ids": ids, "roles": roles, "open": opened}
