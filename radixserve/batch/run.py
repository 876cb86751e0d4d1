"""Runs a batch over a gateway.

Owns: which lines are in flight, that answers come in the order of lines. Must not know: the shape
of lines and answers, HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from radixserve.api.openai.jobs import job_of
from radixserve.batch import answers
from radixserve.batch.asks import Ask, Defaults, ask_of
from radixserve.batch.lines import Line, names_of
from radixserve.batch.progress import Progress, Tally
from radixserve.errors import QueueFull, RequestError
from radixserve.native.apart import apart
from radixserve.native.calls import Calls, Door, new_rid

MAX_FLIGHT_BYTES = 64 * 2**20  # of lines in flight, which one longer line may pass
RETRY_SECONDS = (0.2, 0.5, 1, 2, 5, 10, 20)
SHOW_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to do with the lines. window: how many may be in flight. limit: bytes of a line."""

    defaults: Defaults
    window: int
    limit: int
    default_max_tokens: int


@dataclass(frozen=True, slots=True)
class _Answer:
    """code: of the error, "" where there is none. is_cut: a token limit ended it."""

    line: bytes
    code: str = ""
    is_cut: bool = False


class Batch:
    """One run: lines in, answers out, in order."""

    def __init__(self, task: Task, gateway: Door, tally: Tally) -> None:
        self._task = task
        self._gateway = gateway
        self._calls = Calls(gateway)
        self._tally = tally
        self._has_chat = gateway.renderer.chat.available

    async def run(self, lines: Iterator[Line], output: BinaryIO, progress: Progress) -> None:
        """Answer every line. Raises EngineDead, with all that was answered in order written."""
        shows = asyncio.create_task(self._show(progress))
        try:
            async with contextlib.aclosing(self._answers(lines)) as found:
                async for line, answer in found:
                    output.write(answer.line)
                    output.flush()
                    self._count(line, answer)
            self._tally.gauges = await self._gateway.gauges()
        finally:
            shows.cancel()
            await asyncio.gather(shows, return_exceptions=True)
            progress.close()

    async def _answers(self, lines: Iterator[Line]) -> AsyncGenerator[tuple[Line, _Answer], None]:
        """In the order of `lines`, of which a window is in flight."""
        flight: asyncio.Queue[tuple[Line, asyncio.Task[_Answer]] | None] = asyncio.Queue()
        window = _Window(self._task.window, MAX_FLIGHT_BYTES)
        reading = asyncio.create_task(self._read(lines, flight, window))
        try:
            while (entry := await flight.get()) is not None:
                line, task = entry
                answer = await task
                window.leave(line)
                yield line, answer
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            left = [entry[1] for entry in _emptied(flight) if entry is not None]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _read(
        self,
        lines: Iterator[Line],
        flight: asyncio.Queue[tuple[Line, asyncio.Task[_Answer]] | None],
        window: _Window,
    ) -> None:
        try:
            while (line := await asyncio.to_thread(next, lines, None)) is not None:
                await window.enter(line)
                flight.put_nowait((line, asyncio.create_task(self._answer(line))))
        finally:
            flight.put_nowait(None)

    async def _answer(self, line: Line) -> _Answer:
        rid = new_rid()
        names: answers.Names = {"line": line.number}
        try:
            value = line.value(self._task.limit)
            names = names_of(value, line.number)
            ask = ask_of(value, line.number, self._task.defaults, has_chat=self._has_chat)
            rid = ask.body.setdefault("rid", rid)
            reply = await self._reply(ask)
        except RequestError as error:
            return _Answer(answers.bad_line(names, rid, error), error.code)
        is_cut = any(choice["finish_reason"] == "length" for choice in reply["choices"])
        told = answers.good_line(names, rid, reply, is_json=ask.is_json)
        return _Answer(told, is_cut=is_cut)

    async def _reply(self, ask: Ask) -> dict[str, Any]:
        """As the server would answer. Where a queue of the engine is full, a later attempt."""
        for pause in RETRY_SECONDS:
            with contextlib.suppress(QueueFull):
                return await self._attempt(ask)
            await asyncio.sleep(pause)
        return await self._attempt(ask)

    async def _attempt(self, ask: Ask) -> dict[str, Any]:
        most = self._task.default_max_tokens
        job, _ = await apart(ask.body, job_of, ask.path, ask.body, self._gateway, most)
        return await job.whole(self._calls)

    def _count(self, line: Line, answer: _Answer) -> None:
        self._tally.read = line.end
        if answer.code:
            self._tally.failed[answer.code] += 1
        else:
            self._tally.answered += 1
            self._tally.cut += answer.is_cut

    async def _show(self, progress: Progress) -> None:
        while True:
            self._tally.gauges = await self._gateway.gauges()
            progress.show()
            await asyncio.sleep(SHOW_SECONDS)


class _Window:
    """Bounds the lines in flight, by number and by bytes."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._count = self._bytes = 0
        self._room = asyncio.Event()

    async def enter(self, line: Line) -> None:
        while self._count >= self._most or (self._count and self._bytes >= self._most_bytes):
            self._room.clear()
            await self._room.wait()
        self._count += 1
        self._bytes += len(line.raw or b"")

    def leave(self, line: Line) -> None:
        self._count -= 1
        self._bytes -= len(line.raw or b"")
        self._room.set()


def _emptied(queue: asyncio.Queue[Any]) -> Iterator[Any]:
    while not queue.empty():
        yield queue.get_nowait()
