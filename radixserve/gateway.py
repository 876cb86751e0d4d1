"""The gateway: the front's one door to the engine. Verbs: submit, abort.

Owns: which client a rid belongs to, the expansion of n, seeds that were not given, and the turning
of each output's tokens into text. Must not know: HTTP, chat templates, the scheduler, tensors.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import uuid
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, Protocol, assert_never

import msgspec
import numpy as np

from radixserve.chunks import Chunk, Finish, OutputText, Request, Usage
from radixserve.config.schema import Config
from radixserve.errors import (
    ContextTooLong,
    EngineDead,
    InvalidRequest,
    RadixServeError,
)
from radixserve.log import logger
from radixserve.text.renderer import Renderer
from radixserve.wire import codec
from radixserve.wire.channels import FrontChannel
from radixserve.wire.messages import (
    Abort,
    Control,
    ControlReply,
    Finished,
    FromEngine,
    Gauges,
    Generate,
    PromptScores,
    Ready,
    Started,
    Stats,
    ToEngine,
    TokenOut,
)
from radixserve.wire.seeds import derive_seed

WATCH_SECONDS = 0.25
SILENCE_SECONDS = 4.0


__all__ = ["Chunk", "Finish", "Gateway", "Request", "Usage"]


class Watched(Protocol):
    """The engine's process, as far as its death must be noticed."""

    def alive(self) -> bool: ...

    def working(self) -> bool:
        """Whether it has run since the last call, or waits for a processor or a disk."""


Arrival = tuple[int, list[FromEngine]] | RadixServeError


class Gateway:
    """Lives on one event loop; looks after the child every quarter of a second."""

    def __init__(
        self,
        config: Config,
        channel: FrontChannel,
        renderer: Renderer,
        info: Ready,
        child: Watched,
    ) -> None:
        self.renderer = renderer
        self.info = info
        self.model_name = config.model.served_name or config.model.model
        self.config = config
        self.dead: EngineDead | None = None
        self.aborts = 0
        self._channel = channel
        self._child = child
        # By the rid on the wire, which is new for every submission: what still arrives about a
        # request that its client has left must not reach the next one of the same name.
        self._streams: dict[str, tuple[int, asyncio.Queue[Arrival]]] = {}
        self._wire_rids = itertools.count()
        self._clients: dict[str, list[str]] = {}
        self._replies: dict[str, asyncio.Future[ControlReply]] = {}
        self._control_ids = itertools.count()
        self._last_sign = asyncio.get_running_loop().time()
        self._tasks = [self._spawn(self._receive()), self._spawn(self._watch())]

    @property
    def alive(self) -> bool:
        return self.dead is None

    # ---- verbs ----

    async def submit(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Serve a request; closing the iterator aborts what has not finished.

        Raises RequestError: before the first chunk when refused, later when it fails midway.
        """
        if self.dead is not None:
            raise EngineDead(str(self.dead))
        client = request.rid or uuid.uuid4().hex
        messages = self._expand(client, request)
        arrivals: asyncio.Queue[Arrival] = asyncio.Queue()
        outputs = [
            OutputText(index, self.renderer, request.params) for index in range(len(messages))
        ]
        self._clients[client] = [message.rid for message in messages]
        for index, message in enumerate(messages):
            self._streams[message.rid] = (index, arrivals)
        self._send(messages)
        open_outputs = len(outputs)
        try:
            while open_outputs:
                arrival = await arrivals.get()
                if isinstance(arrival, RadixServeError):
                    raise arrival
                chunk = outputs[arrival[0]].take(arrival[1])
                open_outputs -= chunk.finish is not None
                yield chunk
        finally:
            del self._clients[client]
            left = [m.rid for m in messages if self._streams.pop(m.rid, None) is not None]
            if left and self.alive:
                self.aborts += len(left)
                self._send([Abort(rid) for rid in left])

    def abort(self, rid: str) -> None:
        """End a request of submit(); its stream gets finish reason abort. Unknown rids: nothing."""
        self._send([Abort(each) for each in self._clients.get(rid, ())])

    def abort_all(self) -> None:
        self._send([Abort(each) for rids in self._clients.values() for each in rids])

    async def flush(self) -> int:
        """Drop every cached token that no request holds; returns how many."""
        return (await self._control("flush")).flushed

    async def gauges(self) -> Gauges:
        return (await self._control("stats")).gauges

    async def close(self, timeout: float = 5.0) -> None:
        """Ask the engine to stop and end this front's tasks; open streams get EngineDead."""
        if self.alive:
            with contextlib.suppress(RadixServeError, TimeoutError):
                await asyncio.wait_for(self._control("stop"), timeout)
        self._fail(EngineDead("the engine was stopped"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._channel.close()

    # ---- inside ----

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            logger.error("the gateway failed", exc_info=task.exception())
            self._fail(EngineDead(f"the gateway failed: {task.exception()}"))

    def _expand(self, client: str, request: Request) -> list[Generate]:
        """One Generate per output, each with a seed of its own; checks what the engine trusts."""
        self._check_prompt(request.prompt)
        params = request.params
        if client in self._clients:
            raise InvalidRequest(f"rid {client!r} is in use", param="rid")
        seed = secrets.randbits(63) if params.seed is None else params.seed
        return [
            Generate(
                rid=str(next(self._wire_rids)),
                prompt=request.prompt,
                params=msgspec.structs.replace(
                    params, n=1, seed=seed if index == 0 else derive_seed(seed, index)
                ),
                output_logprobs=request.output_logprobs,
                constraint=request.constraint,
                prompt_logprobs=request.prompt_logprobs if index == 0 else None,
                prompt_logprobs_start=max(1, request.prompt_logprobs_start),
                namespace=request.namespace,
                priority=request.priority,
                program=request.program,
            )
            for index in range(params.n)
        ]

    def _check_prompt(self, prompt: bytes) -> None:
        ids = np.frombuffer(prompt, "<i4")
        if not len(ids):
            raise InvalidRequest("the prompt has no tokens", param="prompt")
        if int(ids.min()) < 0 or int(ids.max()) >= self.info.vocab_size:
            bad = int(ids[(ids < 0) | (ids >= self.info.vocab_size)][0])
            raise InvalidRequest(
                f"id {bad} is not in the vocabulary of {self.info.vocab_size}", param="prompt"
            )
        most = self.config.text.max_prompt_tokens
        if most and len(ids) > most:
            raise ContextTooLong(
                f"the prompt has {len(ids)} tokens, max_prompt_tokens is {most}", param="prompt"
            )

    def _send(self, messages: Sequence[ToEngine]) -> None:
        if messages:
            self._channel.send(codec.encode(messages))

    async def _control(self, op: Any) -> ControlReply:
        if self.dead is not None:
            raise EngineDead(str(self.dead))
        control = Control(str(next(self._control_ids)), op)
        reply: asyncio.Future[ControlReply] = asyncio.get_running_loop().create_future()
        self._replies[control.id] = reply
        self._send([control])
        try:
            return await reply
        finally:
            self._replies.pop(control.id, None)

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            frame = await self._channel.receive()
            self._last_sign = loop.time()
            batch: dict[str, list[FromEngine]] = {}
            for event in codec.decode_from_engine(frame):
                match event:
                    case Started() | TokenOut() | PromptScores() | Finished():
                        batch.setdefault(event.rid, []).append(event)
                    case ControlReply():
                        reply = self._replies.get(event.id)
                        if reply is not None and not reply.done():
                            reply.set_result(event)
                    case Stats():
                        pass  # a sign of life, noted above
                    case Ready():
                        logger.warning("the engine said Ready twice")
                    case _ as never:
                        assert_never(never)
            for rid, events in batch.items():
                self._deliver(rid, events)

    def _deliver(self, rid: str, events: list[FromEngine]) -> None:
        stream = self._streams.get(rid)
        if stream is None:
            return  # its client has gone
        if isinstance(events[-1], Finished):
            del self._streams[rid]
        stream[1].put_nowait((stream[0], events))

    async def _watch(self) -> None:
        """Within five seconds of the engine's death or silence, fail everything in flight."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(WATCH_SECONDS)
            late = loop.time() - before - WATCH_SECONDS
            if not self._child.alive():
                self._fail(EngineDead("the engine process ended"))
                return
            # Time in which this loop itself was held up does not count against the engine, nor
            # does a machine so busy that the heartbeat does not get a processor.
            self._last_sign += max(0.0, late)
            if loop.time() - self._last_sign > SILENCE_SECONDS / 2 and self._child.working():
                self._last_sign += WATCH_SECONDS
            if loop.time() - self._last_sign > SILENCE_SECONDS:
                self._fail(EngineDead(f"the engine was silent for {SILENCE_SECONDS:.0f} s"))
                return

    def _fail(self, error: EngineDead) -> None:
        if self.dead is None:
            self.dead = error
        queues = {id(queue): queue for _, queue in self._streams.values()}
        self._streams.clear()
        for queue in queues.values():
            queue.put_nowait(error)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(error)
