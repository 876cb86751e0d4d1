"""Running compiled programs over the native dialect, in the process that has it.

Owns: one run of a program from its job to its result. Must not know: HTTP, how a graph is run
(lang does it by the same code as everywhere).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

from radixserve.errors import EngineAway, EngineDead
from radixserve.lang.backends.base import Backend, Body, Reply
from radixserve.lang.compiled.replay import Replay
from radixserve.lang.interpreter import Interpreter
from radixserve.lang.run import Run
from radixserve.lang.toolkit import portable
from radixserve.native.service import NativeService
from radixserve.programs.request import Job
from radixserve.programs.telling import Event, TellingCaller, Told

BRIEF = 2048  # characters
MOMENT = 0.005  # seconds
_LONG = {"tools", "choices", "calls"}  # parts that take longer than their text


class ProgramService:
    """The two verbs run and stream. service: makes the calls. may_return: an engine that is gone
    may be replaced or go on, so calls that fail with it are tried again as others are.

    Both raise what a call raised, or what the language raises; cancelling one, or closing the
    stream, aborts every call.
    """

    def __init__(self, service: NativeService, *, may_return: bool = False) -> None:
        self._service = service
        self._may_return = may_return
        self._beginning: asyncio.Future[None] | None = None

    async def run(self, job: Job) -> dict[str, Any]:
        """The result: id, returns, variables, text, messages, usage, and calls if wanted."""
        told = Told(job.returns_calls)
        run = self._open(job, told)
        await self._execute(run, job)
        return _result(run, told, job)

    async def stream(self, job: Job) -> AsyncGenerator[Event, None]:
        """Events of calls as they come: {"call", "name"} with a "chunk", a "reply" or an "error",
        an exception; last {"result": ..} without calls.

        Nothing is yielded before a call has something good to tell: until then an error is raised.
        """
        told = Told(job.returns_calls)
        run = self._open(job, told)
        task = asyncio.create_task(self._execute(run, job))
        task.add_done_callback(lambda _: told.over())
        held: list[Event] = []
        has_begun = False
        try:
            while events := await told.next():
                _name_winners(run.root.interpreter, events)
                has_begun = has_begun or any("error" not in event for event in events)
                held += events
                while has_begun and held:
                    yield held.pop(0)
            await task
            for event in held:
                yield event
            yield {"result": _result(run, told, job)}
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _open(self, job: Job, told: Told) -> Run:
        # Run takes backends of threads, too; on a loop it only uses the verbs of loops.
        backend = cast("Backend", _LoopBackend(self._service, job, self._may_return))
        return Run(
            backend,
            job.settings,
            timeout=job.timeout,
            retries=job.retries,
            on_loop=True,
            caller=functools.partial(TellingCaller, told=told),
        )

    async def _execute(self, run: Run, job: Job) -> None:
        if len(job.graph.calls) > 1:
            await self._together()
        replay = Replay(job.graph, job.arguments, run, max_text=job.max_text)
        try:
            await run.aexecute(functools.partial(replay.go, run.root), in_own_thread=False)
        finally:
            salt, key = job.beside["cache_salt"], job.beside["extra_key"]
            self._service.end_program(run.id, cache_salt=salt, extra_key=key)

    async def _together(self) -> None:
        """Programs that come within a moment begin with one step, so that their later calls meet in
        steps, too."""
        loop = asyncio.get_running_loop()
        beginning = self._beginning
        if beginning is None or beginning.done() or beginning.get_loop() is not loop:
            beginning = self._beginning = loop.create_future()
            loop.call_later(MOMENT, beginning.set_result, None)
        await asyncio.shield(beginning)


class _LoopBackend:
    """The native dialect as a backend of this loop. job: whose calls come. may_return: see
    ProgramService."""

    def __init__(self, service: NativeService, job: Job, may_return: bool) -> None:
        self._service = service
        self._job = job
        self._may_return = may_return

    async def agenerate(self, body: Body) -> Reply | list[Reply]:
        with self._told():
            return await self._service.generate(
                body | self._job.beside,
                is_brief=_is_brief(body),
                follows=self._job.followers.get(body["program"]["call"], 0),
            )

    async def achoose(self, body: Body) -> Reply:
        return cast("Reply", await self.agenerate(body))

    async def astream(self, body: Body) -> AsyncGenerator[Reply, None]:
        with self._told():
            async with contextlib.aclosing(self._service.stream(body | self._job.beside)) as chunks:
                async for chunk in chunks:
                    yield chunk

    def abort(self, rid: str) -> None:
        self._service.abort(rid)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """An engine that may return is away for a moment."""
        try:
            yield
        except EngineDead as error:
            if self._may_return:
                raise EngineAway(str(error)) from error
            raise


def _is_brief(body: Body) -> bool:
    """Most calls of a program add a few lines to ids that are known."""
    if "stop_regex" in body["sampling_params"]:
        return False
    parts = body["input"]
    texts = sum(len(part.get("text", "")) for part in parts)
    return texts <= BRIEF and not any(part.keys() & _LONG for part in parts)


def _name_winners(root: Interpreter, events: list[Event]) -> None:
    """A reply of choices only scores them; which one it is, the program has decided since."""
    winners = {each.call: each.text for each in root.reports if each.kind == "choose"}
    for event in events:
        if event.get("kind") == "choose":
            event["text"] = winners.get(event["call"], "")


def _result(run: Run, told: Told, job: Job) -> dict[str, Any]:
    root = run.root.interpreter
    result = {
        "id": run.id,
        "returns": portable(run.root.result()),
        "variables": portable(root.variables),
        "text": root.text(),
        "messages": root.messages,
        "usage": _usage(root),
    }
    if job.returns_calls and not job.streams:
        result["calls"] = told.ended
    return result


def _usage(root: Interpreter) -> dict[str, int]:
    counts = ("prompt_tokens", "cached_tokens", "completion_tokens", "forced_tokens")
    sums = {name: sum(getattr(each, name) for each in root.reports) for name in counts}
    return {"calls": len(root.reports), **sums}
