"""rs.Engine: the runtime in the user's own process, without HTTP.

Owns: an event loop in a thread of its own, on which the gateway lives, and the blocking and async
faces of the native dialect over it. Must not know: what a body says, HTTP, tensors. The engine
itself is a child process, or with inline=True a thread of this one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

from radixserve.config.flags import configure
from radixserve.errors import EngineDead
from radixserve.gateway import Gateway
from radixserve.launch import Launched, launch
from radixserve.native.about import server_info
from radixserve.native.service import NativeService
from radixserve.programs.request import ProgramLimits, read_job
from radixserve.programs.service import ProgramService
from radixserve.wire.messages import Gauges

T = TypeVar("T")
NO_LIMITS = ProgramLimits()
Body = dict[str, Any]
Reply = dict[str, Any]


class Engine:
    """A model, ready to generate.

    model: Hugging Face folder or hub id, GGUF file, or "smollm2". settings: any field of
    config.schema by name (kv_tokens=.., page_size=.., prefix_cache=False, ..).
    Raises ConfigError or ModelLoadError. A context manager; close() ends the engine.
    """

    def __init__(self, model: str = "smollm2", *, inline: bool = False, **settings: Any) -> None:
        config = configure(model=str(model), **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="radixserve-front", daemon=True
        )
        self._thread.start()
        self._lock = threading.Lock()
        self._closing = False
        self._closed = threading.Event()
        self._launched: Launched | None = None
        try:
            self._launched = self._run(launch(config, inline=inline))
        except BaseException:
            self.close()
            raise
        self._service = NativeService(self._launched.gateway)
        self._programs = ProgramService(self._service)

    # ---- generate ----

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        **fields: Any,
    ) -> Any:
        """Run one prompt or a list of prompts to the end; a list in gives a list out.

        fields: the rest of a /generate body (input_ids=.., input=[parts], return_logprob=True, ..).
        Returns {"text", "output_ids", "meta_info"}, or a list of them; with stream=True the
        iterator of stream().
        """
        if fields.get("stream"):
            return self.submit(_body(prompt, sampling_params, fields))
        return self._run(self._service.generate(_body(prompt, sampling_params, fields)))

    def stream(
        self,
        prompt: str | None = None,
        sampling_params: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Iterator[Reply]:
        """The same as chunks with cumulative text; closing the iterator aborts the request."""
        return self.submit(_body(prompt, sampling_params, fields) | {"stream": True})

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        **fields: Any,
    ) -> Any:
        """generate() for any event loop; cancelling the task aborts the request.

        With stream=True it returns the iterator of async_stream().
        """
        if fields.pop("stream", False):
            return self.async_stream(prompt, sampling_params, **fields)
        body = _body(prompt, sampling_params, fields)
        return await self._await(self._service.generate(body))

    async def async_stream(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        **fields: Any,
    ) -> AsyncIterator[Reply]:
        """stream() for any event loop; closing the iterator aborts the request."""
        body = _body(prompt, sampling_params, fields) | {"stream": True}
        chunks = _Chunks(self._service.stream(body))
        try:
            while (chunk := await self._await(chunks.next())) is not None:
                yield chunk
        finally:
            with contextlib.suppress(EngineDead):
                await self._await(chunks.close())

    def submit(self, body: Body) -> Iterator[Any]:
        """A native body in; its replies out: every chunk when it streams, else the one reply.

        This and abort() are all that the DSL's engine backend needs.
        """
        if not body.get("stream"):
            yield self._run(self._service.generate(body))
            return
        chunks = _Chunks(self._service.stream(body))
        try:
            while (chunk := self._run(chunks.next())) is not None:
                yield chunk
        finally:
            with contextlib.suppress(EngineDead):
                self._run(chunks.close())

    def program(self, body: Body) -> Reply:
        """Run a compiled program to its end, without a round trip per call; a body of POST
        /v1/programs. What compiled.run(backend=engine) gives is mostly easier to use.
        """
        return self._run(self._programs.run(read_job(body, NO_LIMITS)))

    async def async_program(self, body: Body) -> Reply:
        """program() for any event loop; cancelling the task ends the program."""
        return await self._await(self._programs.run(read_job(body, NO_LIMITS)))

    async def async_stream_program(self, body: Body) -> AsyncIterator[dict[str, Any]]:
        """The events of a program's calls; an "error" is an exception. Closing it aborts."""
        chunks = _Chunks(self._programs.stream(read_job(body, NO_LIMITS)))
        try:
            while (event := await self._await(chunks.next())) is not None:
                yield event
        finally:
            with contextlib.suppress(EngineDead):
                await self._await(chunks.close())

    def abort(self, rid: str) -> None:
        """End a request by its rid; unknown rids are ignored."""

        async def abort() -> None:
            self._service.abort(rid)

        self._run(abort())

    # ---- the rest ----

    def flush_cache(self) -> int:
        """Drop every cached token that no request holds; returns how many."""
        return self._run(self._gateway.flush())

    def gauges(self) -> Gauges:
        """What runs, what waits, how the KV pool stands, and the counters so far."""
        return self._run(self._gateway.gauges())

    def get_server_info(self) -> dict[str, Any]:
        """Version, gauges and resolved configuration, as GET /server_info answers."""
        return self._run(server_info(self._gateway, self._gateway.config))

    def shutdown(self) -> None:
        """close(), as SGLang calls it."""
        self.close()

    def close(self) -> None:
        """Stop the engine; open requests end with EngineDead. Later and concurrent calls wait."""
        with self._lock:
            is_first = not self._closing
            self._closing = True
        if not is_first:
            self._closed.wait()
            return
        try:
            asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._closed.set()

    async def _shut_down(self) -> None:
        """End the gateway, which ends what is in flight; then whatever is left on this loop."""
        if self._launched is not None:
            await self._launched.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, late = await asyncio.wait(others, timeout=2.0)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def _gateway(self) -> Gateway:
        if self._launched is None or self._closing:
            raise EngineDead("the engine is closed")
        return self._launched.gateway

    def _call(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        with self._lock:
            if not self._closing:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise EngineDead("the engine is closed")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the front's loop and wait; an interrupt of the caller cancels the work."""
        future = self._call(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise EngineDead("the engine was closed") from None
        except BaseException:
            future.cancel()
            raise

    async def _await(self, work: Coroutine[Any, Any, T]) -> T:
        """The same from another event loop; cancelling the caller cancels the work."""
        future = self._call(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise EngineDead("the engine was closed") from None


class _Chunks:
    """A stream on the front's loop: a cancelled next() is unwound before close() begins."""

    def __init__(self, chunks: AsyncGenerator[Reply, None]) -> None:
        self._chunks = chunks
        self._lock = asyncio.Lock()

    async def next(self) -> Reply | None:
        async with self._lock:
            return await anext(self._chunks, None)

    async def close(self) -> None:
        async with self._lock:
            await self._chunks.aclose()


def _body(prompt: Any, sampling_params: Any, fields: dict[str, Any]) -> Body:
    body = dict(fields)
    if prompt is not None:
        body["text"] = prompt
    if sampling_params is not None:
        body["sampling_params"] = sampling_params
    return body
