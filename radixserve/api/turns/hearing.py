"""What the assistant says in one output, piece by piece, as every dialect hears it.

Owns: which parser reads the text of an output. Must not know: any dialect's shapes, how a call is
written.
"""

from __future__ import annotations

from radixserve.text.tool_calls_stream import Argued, Begun, Said, ToolCallParser

Heard = Said | Begun | Argued


class Hearing:
    """One output. parser: of its calls; None where it can call nothing, and all is text."""

    def __init__(self, parser: ToolCallParser | None) -> None:
        self._parser = parser

    @property
    def has_tools(self) -> bool:
        return self._parser is not None

    def add(self, text: str, is_last: bool) -> list[Heard]:
        """What `text` adds. is_last: no more comes, so what was held back is told as well."""
        if self._parser is None:
            return [Said(text)] if text else []
        heard = self._parser.feed(text)
        return heard + self._parser.finish() if is_last else heard
