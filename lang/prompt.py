"""A state's prompt as parts: ids once the backend has told them, text and role marks until then.

Owns: where a segment ends and the next begins, and that tools are told first. What stands between
ids parts and borders is one segment, to be tokenised at once; a call or a border ends it. Must not
know: tokenizers, templates, variables.

Parts: {"ids": [int], "roles": [..], "open": role or None} first, as the backend gave it;
{"text": str}; {"border": True}; {"role_open": role}; {"role_close": role}. What may be called
stands before all: {"tools": [..]}. Calls that the model made are told beside its ids, "called":
[{"id", "name"}], or, where there are none, by {"calls": [..]} behind its text. {"role_open":
"tool", "tool_call_id": .., "name": ..} begins the result of one.
"""

from __future__ import annotations

from typing import Any

Part = dict[str, Any]


class Prompt:
    """Append-only until a reply replaces what was sent. Parts are never changed in place."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._tools: list[Part] = []
        self._is_fixed = False

    @property
    def has_tools(self) -> bool:
        return bool(self._tools)

    @property
    def is_fixed(self) -> bool:
        """A call has sent its beginning, which nothing can change any more."""
        return self._is_fixed

    def parts(self) -> list[Part]:
        return [*self._tools, *self._parts]

    def copy(self) -> Prompt:
        made = Prompt()
        made._parts, made._tools = list(self._parts), self._tools
        made._is_fixed = self._is_fixed
        return made

    def tell(self, tools: list[dict[str, Any]]) -> None:
        """The conversation's tools, before its first call."""
        self._tools = [{"tools": tools}]

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

    def open_result(self, call_id: str, name: str) -> None:
        self._parts.append({"role_open": "tool", "tool_call_id": call_id, "name": name})

    def close_role(self, role: str) -> None:
        self._parts.append({"role_close": role})

    def replace(self, told: Part, ids: list[int], rest: str, calls: list[Part]) -> None:
        """Everything sent is now `told` (the reply's prompt), followed by `ids` and text `rest`."""
        self._is_fixed = True
        called = [{"id": each["id"], "name": each["function"]["name"]} for each in calls]
        known = {"called": called} if called else {}
        self._parts = [{**told, "ids": [*told["ids"], *ids], **known}]
        self.add_text(rest)

    def add_output(self, text: str, calls: list[Part]) -> None:
        """What a backend without ids wrote: a segment of its own."""
        self._is_fixed = True
        self.add_border()
        self.add_text(text)
        if calls:
            self._parts.append({"calls": calls})
        self.add_border()
