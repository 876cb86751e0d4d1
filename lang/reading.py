"""Following a text while it grows: state.text_iter() and text_async_iter().

Owns: turning a branch's growing text into increments, for threads and for event loops. Must not
know: where chunks come from.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

from radixserve.lang.branch import Branch
from radixserve.lang.interpreter import Stream
from radixserve.lang.operations import Failure


class TextReader:
    """The increments of one variable's text, or of the whole state's (name None).

    Its methods are called with branch.changed held.
    """

    def __init__(self, branch: Branch, name: str | None, outside: bool) -> None:
        self._branch = branch
        self._name = name
        self._outside = outside
        self._stream: Stream | None = None
        self._given = 0

    def has_news(self) -> bool:
        """Whether poll() has something to say or to raise."""
        text, _, is_all = self._look()
        return len(text) > self._given or is_all or self._stopped_by() is not None

    def poll(self) -> tuple[str, Any, bool]:
        """New text, meta information so far, whether that is all.

        Raises the branch's failure, or KeyError, once there is no text before it.
        """
        text, meta, is_all = self._look()
        delta, self._given = text[self._given :], max(self._given, len(text))
        if not delta and not is_all:
            match self._stopped_by():
                case Failure() as failure:
                    failure.reveal()
                case KeyError() as unknown:
                    raise unknown
                case _:
                    pass
        return delta, meta, is_all

    def _look(self) -> tuple[str, Any, bool]:
        branch = self._branch
        if self._name is None:
            is_all = branch.is_idle(self._outside) and branch.failure is None
            return branch.interpreter.text(), None, is_all
        if self._stream is None and not branch.is_queued(self._name):
            self._stream = branch.interpreter.streams.get(self._name)
        if self._stream is None:
            return "", None, False
        return self._stream.text, self._stream.meta, self._stream.is_done

    def _stopped_by(self) -> Failure | KeyError | None:
        if self._branch.failure is not None:
            return self._branch.failure
        is_missing = self._name is not None and self._stream is None
        if is_missing and self._branch.is_idle(self._outside):
            return KeyError(self._name)
        return None


def read(branch: Branch, name: str | None, outside: bool) -> Iterator[str]:
    """Increments whose concatenation is the text; never an empty one."""
    reader = TextReader(branch, name, outside)
    is_all = False
    while not is_all:
        with branch.changed:
            branch.changed.wait_for(reader.has_news)
            delta, _, is_all = reader.poll()
        if delta:
            yield delta


async def read_async(
    branch: Branch, name: str | None, outside: bool
) -> AsyncGenerator[tuple[str, Any]]:
    """The same with the meta information so far, without holding up the event loop."""
    reader = TextReader(branch, name, outside)
    is_all = False
    while not is_all:
        await branch.changed.until(reader.has_news)
        with branch.changed:
            delta, meta, is_all = reader.poll()
        if delta:
            yield delta, meta
