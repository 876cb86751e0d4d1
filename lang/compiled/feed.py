"""A program that runs elsewhere: its calls are answered by what comes from there.

Owns: the one request that a whole program is, and who waits for which reply. Must not know:
sockets, how a graph is run.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from radixserve.lang.asking import Settings
from radixserve.lang.backends.base import Backend, Body
from radixserve.lang.backends.transport import envelope_error
from radixserve.lang.calls import Attempt, Call, Caller, Deadline, OnChunk
from radixserve.lang.compiled.coding import sampling_to_json
from radixserve.lang.errors import BackendError, DeadlineExceeded

DEADLINE_CODE = "deadline_exceeded"
Event = dict[str, Any]
T = TypeVar("T")


@runtime_checkable
class ProgramBackend(Protocol):
    """What a backend has that runs whole programs, beside what every backend has."""

    def program(self, body: Body) -> Event:
        """The result, with the replies of its calls."""
        ...

    async def aprogram(self, body: Body) -> Event:
        """The same for event loops; cancelling it ends the program."""
        ...

    def astream_program(self, body: Body) -> AsyncGenerator[Event, None]:
        """Events of calls as they come; the last has the result. Closing it ends the program."""
        ...


class _Entry:
    """What has come of one call, and who waits for more."""

    def __init__(self) -> None:
        self.told: Event | None = None
        self.on_chunk: OnChunk = lambda _: None
        self.waiting: asyncio.Event | None = None

    def end(self, event: Event) -> None:
        self.told = self.told or event
        if self.waiting is not None:
            self.waiting.set()


class Feed(Caller):
    """Answers the calls of a run with those of the same program elsewhere.

    Deadlines of single calls and retries of calls are kept there. The request itself is made again
    where it fails for a transient reason before anything has come.
    """

    def __init__(self, backend: Backend, retries: int, deadline: Deadline) -> None:
        super().__init__(backend, retries, deadline)
        self._entries: dict[str, _Entry] = {}
        self._last: Event | None = None

    def ask(self, body: Body) -> None:
        """Run the program of `body` elsewhere, to its end. Raises what ended it."""
        with _told():
            self._take_all(self._programs.program(body))

    async def aask(self, body: Body) -> None:
        body = self._in_time(body)
        self._take_all(await self._again(lambda _: self._programs.aprogram(body)))

    @contextlib.asynccontextmanager
    async def running(self, body: Body) -> AsyncGenerator[None, None]:
        """While the program of `body` runs elsewhere; its calls are answered as they end."""
        body = self._in_time({**body, "stream": True})
        request = asyncio.create_task(self._again(lambda attempt: self._read(body, attempt)))
        request.add_done_callback(self._over)
        try:
            yield
        finally:
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    def perform(self, call: Call, on_chunk: OnChunk) -> Any:
        """The reply of a call that has ended elsewhere."""
        del on_chunk
        return self._reply(call, self._entry(call).told or _UNKNOWN)

    async def aperform(self, call: Call, on_chunk: OnChunk) -> Any:
        call.timeout = None
        return await super().aperform(call, on_chunk)

    async def _try(self, call: Call, on_chunk: OnChunk) -> Any:
        entry = self._entry(call)
        entry.on_chunk = on_chunk
        if entry.told is None:
            entry.waiting = asyncio.Event()
            await entry.waiting.wait()
        return self._reply(call, entry.told or _UNKNOWN)

    @property
    def _programs(self) -> ProgramBackend:
        return cast("ProgramBackend", self._backend)

    def _in_time(self, body: Body) -> Body:
        """The request with what is left of the run's time, and its retries."""
        left = self._deadline.left()
        beside = {} if left is None else {"timeout_s": max(left, 1e-3)}
        return {**body, **beside, "retries": self._retries}

    async def _again(self, work: Callable[[Attempt], Awaitable[T]]) -> T:
        request = Call("generate", {})
        while True:
            attempt = Attempt(request, self._retries, lambda _: None)
            request.tries += 1
            with attempt, _told():
                return await work(attempt)
            await asyncio.sleep(attempt.pause)

    async def _read(self, body: Body, attempt: Attempt) -> None:
        async with contextlib.aclosing(self._programs.astream_program(body)) as events:
            async for event in events:
                attempt.on_chunk({"text": "something"})  # from here on it cannot be made again
                if "result" in event:
                    return
                self._take(event)
        raise BackendError(502, "stream_ended", "the stream ended before the program's result")

    def _take_all(self, result: Event) -> None:
        for event in result["calls"]:
            self._take(event)

    def _take(self, event: Event) -> None:
        entry = self._at(event["call"])
        if "chunk" in event:
            entry.on_chunk(event["chunk"])
        else:
            entry.end(event)

    def _over(self, request: asyncio.Task[None]) -> None:
        """Nothing more comes: whoever waits hears why."""
        failed = None if request.cancelled() else request.exception()
        self._last = {"error": failed} if failed is not None else _UNKNOWN
        for entry in self._entries.values():
            entry.end(self._last)

    def _entry(self, call: Call) -> _Entry:
        return self._at(call.body["program"]["call"])

    def _at(self, place: str) -> _Entry:
        if place not in self._entries:
            entry = self._entries[place] = _Entry()
            entry.told = self._last
        return self._entries[place]

    @staticmethod
    def _reply(call: Call, told: Event) -> Any:
        for name in ("started", "seconds", "tries"):
            setattr(call, name, told.get(name, getattr(call, name)))
        if "error" in told:
            raise _error_of(told)
        reply = told["reply"]
        if isinstance(reply, list):
            return [_without_prompt(each) for each in reply]
        return _without_prompt(reply)


class AnsweredFeed(Feed):
    """A Feed that is asked once the program has ended elsewhere."""

    is_instant = True


_UNKNOWN: Event = {
    "error": BackendError(502, "malformed_reply", "the program made other calls elsewhere")
}


def program_body(graph: dict[str, Any], arguments: Mapping[str, Any], settings: Settings) -> Body:
    """The body of POST /v1/programs. graph: in its JSON form."""
    body: Body = {
        "program": graph,
        "arguments": {name: _portable(value) for name, value in arguments.items()},
        "sampling": sampling_to_json(settings.defaults),
        "stream_text": settings.streaming,
        "return_calls": True,
    }
    return body if settings.seed is None else body | {"seed": settings.seed}


def _portable(value: Any) -> Any:
    """`value`, or the text that it comes to where JSON would make another value of it."""
    match value:
        case None | bool() | str():
            return value
        case int() if type(value) is int and abs(value) < 2**53:
            return value
        case float() if type(value) is float and math.isfinite(value):
            return value
        case _:
            return format(value)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """A deadline that passed elsewhere is one here."""
    try:
        yield
    except BackendError as error:
        if error.code == DEADLINE_CODE:
            raise DeadlineExceeded(error.message) from None
        raise


def _without_prompt(reply: dict[str, Any]) -> dict[str, Any]:
    """The prompt's ids stay where the calls are made; here the state is text."""
    return {**reply, "meta_info": {**reply["meta_info"], "prompt": None}}


def _error_of(told: Event) -> BaseException:
    error = told["error"]
    if isinstance(error, BaseException):
        return error
    if error.get("code") == DEADLINE_CODE:
        return DeadlineExceeded(str(error.get("message")))
    return envelope_error(int(told.get("status", 500)), error)
