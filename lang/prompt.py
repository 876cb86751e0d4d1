"""A state's prompt as parts: ids once the backend has told them, text and role marks until then.

Owns: where a segment ends and the next begins. What stands between ids parts and borders is one
segment, to be tokenised at once; a call or a border ends it. Must not know: tokenizers, templates,
variables.

Parts: {"ids": [int], "roles": [..], "open": role or None} first, as the backend gave it;
{"text": str}; {"border": True}; {"role_open": role}; {"role_close": role}.
"""

from __future__ import annotations

from typing import Any

Part = dict[str, Any]


class Prompt:
    """Append-only until a reply replaces what was sent. Parts are never changed in place."""

    def __init__(self, parts: list[Part] | None = None) -> None:
        self._parts: list[Part] = parts or []

    def parts(self) -> list[Part]:
        return list(self._parts)

    def copy(self) -> Prompt:
        return Prompt(self.parts())

    def add_text(self, text: str) -> None:
        if not text:
            return
        if self._parts and "text" in self._parts[-1]:
            self._parts[-1] = {"text": self._parts[-1]["text"] + text}
        else:
            self._parts.append({"text": text})

    def add_border(self) -> None:
        if self._parts and not ("ids" in self._parts[-1] or "border" in self._parts[-1]):
            self._parts.append({"border": True})

    def open_role(self, role: str) -> None:
        self._parts.append({"role_open": role})

    def close_role(self, role: str) -> None:
        self._parts.append({"role_close": role})

    def replace(self, told: Part, ids: list[int], rest: str) -> None:
        """Everything sent is now `told` (the reply's prompt), followed by `ids` and text `rest`."""
        self._parts = [{**told, "ids": [*told["ids"], *ids]}]
        self.add_text(rest)

    def add_output(self, text: str) -> None:
        """What a backend without ids wrote: a segment of its own."""
        self.add_border()
        self.add_text(text)
        self.add_border()
