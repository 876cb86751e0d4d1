"""Making one call: retries on transient errors, deadlines, and giving up when the run is over.

Owns: how long a call may take, when it is tried again, and what is in flight. Must not know:
programs, branches, what a reply means.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from radixserve.lang.backends.base import Backend, Reply
from radixserve.lang.backends.threaded import as_async
from radixserve.lang.errors import (
    BackendError,
    DeadlineExceeded,
    ProgramCancelled,
    is_transient,
)
from radixserve.lang.limits import seconds
from radixserve.lang.portal import Portal

FIRST_PAUSE = 0.25  # seconds before the second try; doubled before each further one
LONGEST_PAUSE = 20.0
INSIST_SECONDS = 10.0  # for which calls that were aborted and go on are aborted again

OnChunk = Callable[[Reply], None]


@dataclass(slots=True)
class Call:
    """One request to a backend. body: its wire form. name: the variable it is for.
    timeout: seconds, tries included.

    started: time.time() when it was first sent, seconds: how long it took, tries: how often it was
    sent; written by the Caller.
    """

    kind: Literal["generate", "choose"]
    body: dict[str, Any]
    name: str | None = None
    timeout: float | None = None
    started: float = 0.0
    seconds: float = 0.0
    tries: int = 0

    @property
    def place(self) -> str:
        """Where it stands in its program; the same in every try."""
        return str(self.body["program"]["call"])


class Deadline:
    """A moment that a whole program must not pass; None is never."""

    def __init__(self, timeout: float | None, what: str) -> None:
        seconds(timeout)
        self.at = None if timeout is None else time.monotonic() + timeout
        self._timeout = timeout
        self._what = what

    def left(self) -> float | None:
        """Seconds left, at least 0; None when there is no end."""
        return None if self.at is None else max(0.0, self.at - time.monotonic())

    def error(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"{self._what} took longer than {self._timeout:g} s")


class Caller:
    """The calls of one run. perform() blocks, aperform() is for event loops.

    A blocking call that has a deadline or may be tried again is made on a loop of its own thread,
    which lives until close(): only there can a call be left before its backend answers.
    is_instant: calls never wait, so whoever appends makes them.
    """

    is_instant = False

    def __init__(self, backend: Backend, retries: int, deadline: Deadline) -> None:
        if retries < 0:
            raise ValueError(f"retries must be 0 or more, not {retries}")
        self._backend = backend
        self._async = as_async(backend)
        self._retries = retries
        self._deadline = deadline
        self._lock = threading.Lock()
        self._has_left = threading.Condition(self._lock)
        self._insisting: list[threading.Thread] = []
        self._in_flight: dict[str, str] = {}  # by rid the place of the call in its program
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._portal: Portal | None = None
        self._is_cancelled = False
        self._dropped: set[str] = set()

    def perform(self, call: Call, on_chunk: OnChunk) -> Any:
        if self._retries or self._deadline.at is not None or call.timeout is not None:
            return self._open_portal().run(self.aperform(call, on_chunk))
        with self._timed(call):
            self._enter(call)
            try:
                return self._send(call, on_chunk)
            finally:
                self._leave(call.body["rid"])

    async def aperform(self, call: Call, on_chunk: OnChunk) -> Any:
        with self._timed(call):
            task = asyncio.current_task()
            assert task is not None
            with self._lock:
                self._refuse_cancelled(call.place)
                self._tasks[task] = call.place
            own = Deadline(call.timeout, f"call {call.place}")
            try:
                return await self._within(own, self._try(call, on_chunk))
            except asyncio.CancelledError:
                self._refuse_cancelled(call.place)
                raise
            finally:
                with self._lock:
                    self._tasks.pop(task, None)

    def cancel(self) -> None:
        """Abort the calls in flight; calls made from now on raise ProgramCancelled."""
        with self._lock:
            self._is_cancelled = True
            rids, tasks = list(self._in_flight), list(self._tasks)
        self._abort(rids, tasks)

    def drop(self, places: set[str]) -> None:
        """cancel() for the calls at these places of the program alone."""
        with self._lock:
            self._dropped |= places
            rids = [rid for rid, place in self._in_flight.items() if place in places]
            tasks = [task for task, place in self._tasks.items() if place in places]
        self._abort(rids, tasks)

    def _abort(self, rids: list[str], tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                task.get_loop().call_soon_threadsafe(task.cancel)
        self._abort_blocking(rids)
        if rids:
            thread = threading.Thread(
                target=self._insist, args=(rids,), name="radixserve-abort", daemon=True
            )
            self._insisting.append(thread)
            thread.start()

    def _abort_blocking(self, rids: list[str]) -> None:
        for rid in rids:
            # The error that led here must not be replaced by a backend that cannot even abort.
            with contextlib.suppress(Exception):
                self._backend.abort(rid)

    def _insist(self, rids: list[str]) -> None:
        """Abort again what goes on: the first time it may not have reached its backend yet."""
        end, pause = time.monotonic() + INSIST_SECONDS, FIRST_PAUSE
        while time.monotonic() < end:
            with self._lock:
                if self._has_left.wait_for(lambda: self._in_flight.keys().isdisjoint(rids), pause):
                    return
                left = [rid for rid in rids if rid in self._in_flight]
            self._abort_blocking(left)
            pause = min(2 * pause, INSIST_SECONDS / 4)

    def close(self) -> None:
        with self._lock:
            portal, self._portal = self._portal, None
        if portal is not None:
            portal.close()
        for thread in self._insisting:
            thread.join(FIRST_PAUSE)

    @contextlib.contextmanager
    def _timed(self, call: Call) -> Iterator[None]:
        call.started, begin = time.time(), time.perf_counter()
        try:
            yield
        finally:
            call.seconds = time.perf_counter() - begin

    def _open_portal(self) -> Portal:
        with self._lock:
            self._refuse_cancelled()
            if self._portal is None:
                self._portal = Portal()
            return self._portal

    def _refuse_cancelled(self, place: str | None = None) -> None:
        if self._is_cancelled or place in self._dropped:
            raise cancelled() from None

    def _enter(self, call: Call) -> None:
        with self._lock:
            self._refuse_cancelled(call.place)
            self._in_flight[call.body["rid"]] = call.place

    def _leave(self, rid: str) -> None:
        with self._lock:
            self._in_flight.pop(rid, None)
            self._has_left.notify_all()

    def _before(self, call: Call) -> None:
        call.tries += 1

    def _send(self, call: Call, on_chunk: OnChunk) -> Any:
        self._before(call)
        if call.kind == "choose":
            return self._backend.choose(call.body)
        if not call.body["stream"]:
            return self._backend.generate(call.body)
        chunks = self._backend.stream(call.body)
        try:
            for chunk in chunks:
                self._refuse_cancelled(call.place)
                if _is_last(chunk):
                    return chunk
                on_chunk(chunk)
        finally:
            close = getattr(chunks, "close", None)
            if close is not None:
                close()
        raise _ended_early()

    async def _within(self, own: Deadline, work: Any) -> Any:
        """`work` until the nearer of its own and the run's deadline."""
        whose = min((own, self._deadline), key=_seconds_left)
        try:
            async with asyncio.timeout(whose.left()) as limit:
                return await work
        except TimeoutError:
            if limit.expired():
                raise whose.error() from None
            raise

    async def _try(self, call: Call, on_chunk: OnChunk) -> Any:
        rid = call.body["rid"]
        while True:
            attempt = Attempt(call, self._retries, on_chunk)
            with attempt:
                return await self._asend(call, attempt.on_chunk)
            await asyncio.sleep(attempt.pause)
            call.body = {**call.body, "rid": f"{rid}-try{call.tries + 1}"}

    async def _asend(self, call: Call, on_chunk: OnChunk) -> Any:
        self._before(call)
        if call.kind == "choose":
            return await self._async.achoose(call.body)
        if not call.body["stream"]:
            return await self._async.agenerate(call.body)
        chunks: AsyncGenerator[Reply, None] = self._async.astream(call.body)
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                if _is_last(chunk):
                    return chunk
                on_chunk(chunk)
        raise _ended_early()


class Attempt(contextlib.AbstractContextManager[None]):
    """One try of a call. Swallows an error after which there is another; pause: until that one.

    What a reader has seen of a stream cannot be taken back, so then there is no other.
    """

    def __init__(self, call: Call, retries: int, on_chunk: OnChunk) -> None:
        self.pause = 0.0
        self._call = call
        self._retries = retries
        self._pass_on = on_chunk
        self._has_text = False

    def on_chunk(self, chunk: Reply) -> None:
        self._has_text = self._has_text or bool(chunk.get("text"))
        self._pass_on(chunk)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if error is None or self._has_text or self._call.tries > self._retries:
            return False
        self.pause = _pause(self._call.tries, error)
        return is_transient(error)


def cancelled(what: str = "program") -> ProgramCancelled:
    return ProgramCancelled(f"the {what} was cancelled")


def _seconds_left(deadline: Deadline) -> float:
    left = deadline.left()
    return float("inf") if left is None else left


def _pause(tries: int, error: BaseException) -> float:
    """Doubling, with jitter, so that many calls refused together do not come back together."""
    asked = getattr(error, "retry_after", None)
    wanted = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (tries - 1)) * random.uniform(0.5, 1.0)
    return max(wanted, asked or 0.0)


def _is_last(chunk: Reply) -> bool:
    return (chunk.get("meta_info") or {}).get("finish_reason") is not None


def _ended_early() -> BackendError:
    return BackendError(502, "stream_ended", "the stream ended before its last chunk")
