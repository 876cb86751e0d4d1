"""The gateway: the front's one door to the engine. Verbs: submit, abort.

Owns: which client a rid belongs to, the expansion of n, seeds that were not given, deadlines, the
turning of each output's tokens into text, and whether the engine is there. Must not know: HTTP,
chat templates, the scheduler, tensors.

An engine that ends is dead; one that falls silent may speak again. Either fails what is in flight
and what is asked meanwhile. A step that takes too long is trouble too, but its requests live on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, Protocol, assert_never

from radixserve.chunks import Chunk, Finish, OutputText, Request, Usage
from radixserve.config.schema import Config
from radixserve.errors import (
    EngineDead,
    InvalidRequest,
    RadixServeError,
    Stopping,
    TimedOut,
)
from radixserve.inflight import InFlight, check_prompt, expand
from radixserve.log import logger
from radixserve.metrics.guarded import Guarded
from radixserve.metrics.trail import Cause, Recorder
from radixserve.text.renderer import Renderer
from radixserve.wire import codec
from radixserve.wire.cache import CacheStats, TreeNode
from radixserve.wire.channels import FrontChannel
from radixserve.wire.messages import (
    Abort,
    Control,
    ControlReply,
    Finished,
    FromEngine,
    Gauges,
    ProgramEnd,
    PromptScores,
    Ready,
    Started,
    Stats,
    ToEngine,
    TokenOut,
)

WATCH_SECONDS = 0.25
SILENCE_SECONDS = 4.0
# How long an engine has to say that it ended a request at its deadline; it may be amid a step.
DEADLINE_SECONDS = 0.5

__all__ = ["Chunk", "Finish", "Gateway", "Request", "Usage"]


class Watched(Protocol):
    """The engine's process, as far as its death must be noticed."""

    def alive(self) -> bool: ...

    def working(self) -> bool:
        """Whether it has run since the last call, or waits for a processor or a disk."""


class Gateway:
    """Lives on one event loop; looks after the child every quarter of a second.

    recorders: are told how requests went; what they raise is logged. gauges of the last heartbeat:
    last_gauges.
    """

    def __init__(
        self,
        config: Config,
        channel: FrontChannel,
        renderer: Renderer,
        info: Ready,
        child: Watched,
        recorders: Sequence[Recorder] = (),
    ) -> None:
        self.renderer = renderer
        self.info = info
        self.model_name = config.model.served_name or config.model.model
        self.config = config
        self.dead: EngineDead | None = None
        self.silent: EngineDead | None = None
        self.ended = asyncio.Event()  # the engine has died
        self.aborts = 0
        self.last_gauges = Gauges()
        self._recorders = [Guarded(recorder) for recorder in recorders]
        # By the rid on the wire, which is new for every submission: what still arrives about a
        # request that its client has left must not reach the next one of the same name.
        self._flights: dict[str, InFlight] = {}
        self._wire_rids = itertools.count()
        self._clients: dict[str, InFlight] = {}
        self._replies: dict[str, asyncio.Future[ControlReply]] = {}
        self._control_ids = itertools.count()
        self._is_stopping = False
        self._unsent: list[ToEngine] = []
        self._connect(channel, info, child)

    def _connect(self, channel: FrontChannel, info: Ready, child: Watched) -> None:
        self.info = info
        self._channel = channel
        self._is_closed = False
        self._child = child
        self._last_sign = asyncio.get_running_loop().time()
        self._tasks = [self._spawn(self._receive()), self._spawn(self._watch())]

    @property
    def alive(self) -> bool:
        """The engine is there, is heard from, and its step is not too long under way."""
        return self.trouble is None

    @property
    def trouble(self) -> EngineDead | None:
        """What is wrong with the engine."""
        limit = self.config.schedule.step_timeout_s
        if self.last_gauges.step_seconds > limit > 0:
            return EngineDead(f"a step has taken more than {limit:g} s")
        return self.dead or self.silent

    @property
    def in_flight(self) -> int:
        """Requests that have not ended and whose clients are there."""
        return len(self._clients)

    # ---- verbs ----

    async def submit(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Serve a request; closing the iterator aborts what has not finished.

        Raises RequestError: before the first chunk when refused, later when it fails midway.
        """
        self._check_engine()
        if self._is_stopping:
            raise Stopping
        client = request.rid or uuid.uuid4().hex
        if client in self._clients:
            raise InvalidRequest(f"rid {client!r} is in use", param="rid")
        check_prompt(request.prompt, self.info.vocab_size, self.config.text.max_prompt_tokens)
        messages = expand(request, self._wire_rids)
        now = asyncio.get_running_loop().time()
        flight = InFlight(client, request, [m.rid for m in messages], self._recorders, now)
        outputs = [OutputText(index, self.renderer, request) for index in range(len(messages))]
        self._clients[client] = flight
        self._flights.update((message.rid, flight) for message in messages)
        self._send(messages)
        open_outputs = len(outputs)
        cause: Cause = "client"
        timers = contextlib.ExitStack()
        try:
            self._set_deadline(flight, request.timeout_s, timers)
            while open_outputs:
                for index, events in await flight.news():
                    chunk = flight.named(outputs[index].take(events))
                    open_outputs -= chunk.finish is not None
                    yield chunk
        except RadixServeError:
            cause = "error"
            raise
        finally:
            timers.close()
            del self._clients[client]
            flight.leave(cause)
            self.aborts += len(flight.open)
            self._ask_to_end(flight, cause)

    def abort(self, rid: str) -> None:
        """End a request of submit(); its stream gets finish reason abort. Unknown rids: nothing."""
        flight = self._clients.get(rid)
        if flight is not None:
            self._ask_to_end(flight, "request")

    def end_program(self, program: str, namespace: str) -> None:
        """The program makes no more calls; what the engine keeps for it may go. Need not be told:
        it is forgotten in time."""
        if self.dead is None:
            self._send([ProgramEnd(program, namespace)])

    def abort_all(self) -> None:
        """End every request, and refuse others: this front is about to stop."""
        self._is_stopping = True
        for flight in self._clients.values():
            self._ask_to_end(flight, "shutdown")

    async def flush(self) -> int:
        """Drop every cached token that no request holds; returns how many."""
        return (await self._control("flush")).flushed

    async def gauges(self) -> Gauges:
        return (await self._control("stats")).gauges

    async def cache_stats(self) -> CacheStats:
        """What the cache holds."""
        return (await self.cache_tree(None, 0, 0))[0]

    async def cache_tree(
        self, namespace: str | None, depth: int, limit: int
    ) -> tuple[CacheStats, list[TreeNode]]:
        """The same, and at most `limit` nodes of the radix tree; see wire.messages.Control."""
        reply = await self._control("cache", namespace=namespace, depth=depth, limit=limit)
        assert reply.cache is not None
        return reply.cache, reply.tree

    async def attach(self, channel: FrontChannel, info: Ready, child: Watched) -> None:
        """Go on with another engine in place of the one that has ended."""
        await self._disconnect()
        self.dead = self.silent = None
        self.last_gauges = Gauges()
        self.ended.clear()
        self._connect(channel, info, child)

    def give_up(self, why: str) -> None:
        """Take the engine for dead, whatever it says: somebody is about to end it."""
        self._die(EngineDead(why))

    async def close(self, timeout: float = 5.0) -> None:
        """Ask the engine to stop and end this front's tasks; open streams get EngineDead."""
        if self.dead is None and self.silent is None:
            with contextlib.suppress(RadixServeError, TimeoutError):
                await asyncio.wait_for(self._control("stop"), timeout)
        self._die(EngineDead("the engine was stopped"))
        await self._disconnect()

    # ---- inside ----

    async def _disconnect(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._flush()
        self._is_closed = True
        self._channel.close()

    def _check_engine(self) -> None:
        error = self.dead or self.silent
        if error is not None:
            raise EngineDead(str(error))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            logger.error("the gateway failed", exc_info=task.exception())
            self._die(EngineDead(f"the gateway failed: {task.exception()}"))

    def _set_deadline(
        self, flight: InFlight, seconds: float | None, timers: contextlib.ExitStack
    ) -> None:
        if seconds is None:
            return
        loop = asyncio.get_running_loop()
        late = TimedOut(f"the request passed its deadline of {seconds:g} s")

        def expire() -> None:
            self._ask_to_end(flight, "timeout")
            timers.callback(loop.call_later(DEADLINE_SECONDS, flight.fail, late).cancel)

        timers.callback(loop.call_later(seconds, expire).cancel)

    def _ask_to_end(self, flight: InFlight, cause: Cause) -> None:
        flight.ask_to_end(cause)
        if self.dead is None:
            self._send([Abort(rid) for rid in flight.open])

    def _send(self, messages: Sequence[ToEngine]) -> None:
        """With what else is sent in this turn of the loop, so that requests that are made together
        arrive together."""
        if messages and not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += messages

    def _flush(self) -> None:
        messages, self._unsent = self._unsent, []
        if messages and not self._is_closed:
            self._channel.send(codec.encode(messages))

    async def _control(self, op: Any, **details: Any) -> ControlReply:
        self._check_engine()
        control = Control(str(next(self._control_ids)), op, **details)
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
            self._note_sign(loop.time())
            batch: dict[str, list[FromEngine]] = {}
            for event in codec.decode_from_engine(frame):
                match event:
                    case Started() | TokenOut() | PromptScores() | Finished():
                        batch.setdefault(event.rid, []).append(event)
                    case ControlReply():
                        self._answer(event)
                    case Stats():
                        self.last_gauges = event.gauges
                    case Ready():
                        logger.warning("the engine said Ready twice")
                    case _ as never:
                        assert_never(never)
            for rid, events in batch.items():
                self._deliver(rid, events, loop.time())

    def _answer(self, event: ControlReply) -> None:
        self.last_gauges = event.gauges
        reply = self._replies.get(event.id)
        if reply is not None and not reply.done():
            reply.set_result(event)

    def _deliver(self, rid: str, events: list[FromEngine], now: float) -> None:
        flight = self._flights.get(rid)
        if flight is None:
            return  # it was given up while the engine was silent
        flight.take(rid, events, now)
        if rid not in flight.open:
            del self._flights[rid]

    def _note_sign(self, now: float) -> None:
        self._last_sign = now
        if self.silent is not None:
            logger.warning("the engine speaks again")
            self.silent = None

    async def _watch(self) -> None:
        """Within five seconds of the engine's death or silence, fail everything in flight."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(WATCH_SECONDS)
            late = loop.time() - before - WATCH_SECONDS
            if not self._child.alive():
                self._die(EngineDead("the engine process ended"))
                return
            # Time in which this loop itself was held up does not count against the engine, nor
            # does a machine so busy that the heartbeat does not get a processor.
            self._last_sign += max(0.0, late)
            if loop.time() - self._last_sign > SILENCE_SECONDS / 2 and self._child.working():
                self._last_sign += WATCH_SECONDS
            if self.silent is None and loop.time() - self._last_sign > SILENCE_SECONDS:
                self.silent = EngineDead(f"the engine was silent for {SILENCE_SECONDS:.0f} s")
                logger.error("%s", self.silent)
                self._lose(self.silent)

    def _die(self, error: EngineDead) -> None:
        if self.dead is None:
            self.dead = error
            self.ended.set()
        self._lose(error)

    def _lose(self, error: EngineDead) -> None:
        """Nothing more will come of what is in flight; an engine that speaks again drops it."""
        now = asyncio.get_running_loop().time()
        if self.dead is None:
            self._send([Abort(rid) for rid in self._flights])
        flights = {id(flight): flight for flight in self._flights.values()}
        self._flights.clear()
        for flight in flights.values():
            flight.lose(error, now)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(error)
