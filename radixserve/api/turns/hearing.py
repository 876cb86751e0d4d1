"""What the assistant says in one output, piece by piece, as every dialect hears it.

Owns: which parser reads the text of an output. Must not know: any dialect's shapes, how a call is
written.
"""

from __future__ import annotations

from radixserve.text.reasoning import Event, HeardParser

Heard = Event


class Hearing:
    """One output. has_tools: it may call some. has_thoughts: it may reason, before all else."""

    def __init__(self, parser: HeardParser, *, has_tools: bool, has_thoughts: bool) -> None:
        self._parser = parser
        self.has_tools = has_tools
        self.has_thoughts = has_thoughts

    def add(self, text: str, is_last: bool) -> list[Heard]:
        """What `text` adds. is_last: no more comes, so what was held back is told as well."""
        heard = self._parser.feed(text)
        return heard + self._parser.finish() if is_last else heard
