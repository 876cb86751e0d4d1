"""Following a text while it grows: state.text_iter() and text_async_iter().

Owns: turning a branch's growing text into increments, for threads and for event loops. Must not
know: where chunks come from.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from radixserve.lang.branch import Branch
from radixserve.lang.interpreter import Stream


class TextReader:
    """The increments of one variable's text, or of the whole state's (name None).

    poll() is called with branch.changed held.
    """

    def __init__(self, branch: Branch, name: str | None, outside: bool) -> None:
        self._branch = branch
        self._name = name
        self._outside = outside
        self._stream: Stream | None = None
        self._given = 0

    def poll(self) -> tuple[str, Any, bool]:
        """New text, meta information so far, whether that is all. Raises the branch's failure."""
        text, meta, is_all = self._state() if self._name is None else self._variable(self._name)
        delta, self._given = text[self._given :], max(self._given, len(text))
        if not delta and not is_all and self._branch.failure is not None:
            self._branch.failure.reveal()
        return delta, meta, is_all

    def _state(self) -> tuple[str, Any, bool]:
        is_all = self._branch.is_idle(self._outside) and self._branch.failure is None
        return self._branch.interpreter.text(), None, is_all

    def _variable(self, name: str) -> tuple[str, Any, bool]:
        branch = self._branch
        if self._stream is None and not branch.is_queued(name):
            self._stream = branch.interpreter.streams.get(name)
        if self._stream is None:
            if branch.failure is None and branch.is_idle(self._outside):
                raise KeyError(name)
            return "", None, False
        return self._stream.text, self._stream.meta, self._stream.is_done


def read(branch: Branch, name: str | None, outside: bool) -> Iterator[str]:
    """Increments whose concatenation is the text; never an empty one."""
    reader = TextReader(branch, name, outside)
    is_all = False
    while not is_all:
        with branch.changed:
            delta, _, is_all = reader.poll()
            while not delta and not is_all:
                branch.changed.wait()
                delta, _, is_all = reader.poll()
        if delta:
            yield delta


async def read_async(
    branch: Branch, name: str | None, outside: bool
) -> AsyncGenerator[tuple[str, Any]]:
    """The same with the meta information so far, without holding up the event loop."""
    reader = TextReader(branch, name, outside)
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed under an abandoned reader
            loop.call_soon_threadsafe(woken.set)

    with branch.changed:
        branch.listeners.add(wake)
    try:
        is_all = False
        while not is_all:
            woken.clear()
            with branch.changed:
                delta, meta, is_all = reader.poll()
            if delta:
                yield delta, meta
            elif not is_all:
                await woken.wait()
    finally:
        with branch.changed:
            branch.listeners.discard(wake)
