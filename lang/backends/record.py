"""Recording a program's calls, and answering the same calls again without the backend.

Owns: the recording, in memory and as JSON lines, and which calls count as the same. Must not know:
any backend, programs.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from radixserve.lang.backends.base import Backend, Body, Reply
from radixserve.lang.backends.default import resolve_backend
from radixserve.lang.backends.engine import EngineLink
from radixserve.lang.backends.threaded import as_async
from radixserve.lang.errors import BackendError


@dataclass(frozen=True, slots=True)
class Recorded:
    """One call. replies: its chunks, or the one reply; then error: what it raised, or None."""

    body: Body
    replies: list[Any]
    error: dict[str, Any] | None = None


class Recorder:
    """A backend that passes calls on to another, or to an engine, and keeps what was said.

    path: where to keep it as well, as JSON lines.

    calls: in the order they ended. A stream that its reader leaves early is kept as far as it came.
    """

    def __init__(self, backend: Backend | EngineLink, path: str | Path | None = None) -> None:
        self.calls: list[Recorded] = []
        self._backend = resolve_backend(backend)
        self._async = as_async(self._backend)
        self._lock = threading.Lock()
        self._path = None if path is None else Path(path)
        if self._path is not None:
            self._path.write_text("")

    def generate(self, body: Body) -> Reply | list[Reply]:
        with self._keeping(body) as replies:
            replies.append(self._backend.generate(body))
        return cast("Reply | list[Reply]", replies[0])

    def choose(self, body: Body) -> Reply:
        with self._keeping(body) as replies:
            replies.append(self._backend.choose(body))
        return cast("Reply", replies[0])

    def stream(self, body: Body) -> Iterator[Reply]:
        with self._keeping(body) as replies:
            chunks = self._backend.stream(body)
            with contextlib.closing(cast("Any", chunks)):
                for chunk in chunks:
                    replies.append(chunk)
                    yield chunk

    async def agenerate(self, body: Body) -> Reply | list[Reply]:
        with self._keeping(body) as replies:
            replies.append(await self._async.agenerate(body))
        return cast("Reply | list[Reply]", replies[0])

    async def achoose(self, body: Body) -> Reply:
        with self._keeping(body) as replies:
            replies.append(await self._async.achoose(body))
        return cast("Reply", replies[0])

    async def astream(self, body: Body) -> AsyncGenerator[Reply, None]:
        with self._keeping(body) as replies:
            async with contextlib.aclosing(self._async.astream(body)) as chunks:
                async for chunk in chunks:
                    replies.append(chunk)
                    yield chunk

    def abort(self, rid: str) -> None:
        self._backend.abort(rid)

    def flush_cache(self) -> None:
        self._backend.flush_cache()

    def get_server_info(self) -> dict[str, Any]:
        return self._backend.get_server_info()

    @contextlib.contextmanager
    def _keeping(self, body: Body) -> Iterator[list[Any]]:
        replies: list[Any] = []
        error: dict[str, Any] | None = None
        try:
            yield replies
        except Exception as raised:
            error = _said(raised)
            raise
        finally:
            self._keep(Recorded(body, replies, error))

    def _keep(self, call: Recorded) -> None:
        with self._lock:
            self.calls.append(call)
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(json.dumps(asdict(call)) + "\n")


class Replay:
    """A backend that answers from a recording: a Recorder, its file, or its calls.

    A call is the same if it stands at the same place of its program and asks for the same, whether
    streamed or not; equal calls are answered in the order recorded. Another is an error that says
    what was recorded for its place.
    """

    def __init__(self, source: Recorder | str | Path | Iterable[Recorded]) -> None:
        self._left: dict[str, deque[Recorded]] = defaultdict(deque)
        self._asked_at: dict[str, Any] = {}
        self._lock = threading.Lock()
        for call in _calls_of(source):
            self._left[_key(call.body)].append(call)
            self._asked_at[call.body["program"]["call"]] = call.body["input"]

    def generate(self, body: Body) -> Reply | list[Reply]:
        *_, last = self._replies(body)
        return cast("Reply | list[Reply]", last)

    def choose(self, body: Body) -> Reply:
        return cast("Reply", self.generate(body))

    def stream(self, body: Body) -> Iterator[Reply]:
        yield from self._replies(body)

    async def agenerate(self, body: Body) -> Reply | list[Reply]:
        return self.generate(body)

    async def achoose(self, body: Body) -> Reply:
        return self.choose(body)

    async def astream(self, body: Body) -> AsyncGenerator[Reply, None]:
        for reply in self._replies(body):
            yield reply

    def abort(self, rid: str) -> None:
        """Nothing is in flight."""

    def flush_cache(self) -> None:
        """There is no cache."""

    def get_server_info(self) -> dict[str, Any]:
        return {"model_path": "replay", "calls_left": sum(map(len, self._left.values()))}

    def _replies(self, body: Body) -> Iterator[Any]:
        with self._lock:
            queue = self._left[_key(body)]
            call = queue.popleft() if queue else None
        if call is None:
            place = body["program"]["call"]
            known = self._asked_at.get(place, "nothing")
            message = f"call {place} asks {body['input']!r}; recorded was {known!r}"
            raise BackendError(404, "not_recorded", message)
        yield from call.replies
        if call.error is not None:
            raise BackendError(**call.error)


def _calls_of(source: Recorder | str | Path | Iterable[Recorded]) -> Iterable[Recorded]:
    match source:
        case Recorder():
            return list(source.calls)
        case str() | Path():
            lines = Path(source).read_text().splitlines()
            return [Recorded(**json.loads(line)) for line in lines]
        case _:
            return source


def _key(body: Body) -> str:
    """What two equal calls have in common, as text; JSON turns the ids of logit_bias into texts."""
    same = {name: value for name, value in body.items() if name not in ("rid", "stream", "program")}
    return json.dumps([body["program"]["call"], same], sort_keys=True)


def _said(error: Exception) -> dict[str, Any]:
    return {
        "status": getattr(error, "status", 500),
        "code": str(getattr(error, "code", type(error).__name__)),
        "message": str(getattr(error, "message", error)),
        "param": getattr(error, "param", None),
    }
