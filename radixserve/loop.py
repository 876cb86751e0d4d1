"""The engine process: the only file that knows sockets, scheduler, executor and grammar together.

One step: drain > plan > launch > (overlap: apply the previous step) > mask > sample > (no overlap:
apply this step) > send. Owns: the order of these, the heartbeat, and what happens when a step
fails. Must not know: text, HTTP, what a plan says.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol, assert_never

import msgspec

from radixserve import log
from radixserve.config.schema import Config
from radixserve.errors import RadixServeError, RequestError
from radixserve.grammar.gate import Gate, Words
from radixserve.guide import Guide
from radixserve.log import logger
from radixserve.plan import StepPlan, StepResult
from radixserve.scheduler.outputs import finished
from radixserve.scheduler.scheduler import Scheduler
from radixserve.wire import codec
from radixserve.wire.cache import TreeNode
from radixserve.wire.channels import EngineChannel, ZmqEngine
from radixserve.wire.messages import (
    Abort,
    Control,
    ControlReply,
    Finished,
    FinishReason,
    FromEngine,
    Gauges,
    Generate,
    ProgramEnd,
    Ready,
    Setup,
    Stats,
    ToEngine,
)

HEARTBEAT_SECONDS = 0.5
FOLLOW_SECONDS = 0.002  # what a step waits for requests that follow others at once
COMPILING_SECONDS = 0.005  # between two looks at the compiler while there is nothing to compute


class StepFailed(Exception):
    """The executor raised; the requests of the step are retried once."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextlib.contextmanager
def _computing() -> Iterator[None]:
    """Around calls of the executor only: a fault of the scheduler must end the process."""
    try:
        yield
    except Exception as error:
        raise StepFailed(error) from error


class StepHandle(Protocol):
    def sample(self, mask: Words | None) -> None: ...
    def result(self) -> StepResult: ...


class StepExecutor(Protocol):
    """What the loop asks of an executor (executor.executor.Executor, or a test's)."""

    def launch(self, plan: StepPlan) -> StepHandle: ...


class Loop:
    """overlap: plan and launch a step before the previous one is applied."""

    def __init__(
        self,
        channel: EngineChannel,
        scheduler: Scheduler,
        executor: StepExecutor,
        heart: Heart,
        gate: Gate,
        *,
        overlap: bool = False,
    ) -> None:
        self._channel = channel
        self._scheduler = scheduler
        self._executor = executor
        self._heart = heart
        self._gate = gate
        self._overlap = overlap
        self._launched: deque[StepHandle] = deque()
        self._stopping = False

    def run(self) -> None:
        """Until Control stop."""
        try:
            while not self._stopping:
                self.turn()
        finally:
            self._gate.close()

    def turn(self) -> None:
        """Take what has arrived, make one step, say what came of it."""
        events = self._drain()
        self._heart.step_began = time.monotonic()
        try:
            self._step(events)
        except StepFailed as failure:
            logger.error("a step failed", exc_info=failure.cause)
            self._launched.clear()
            events += self._scheduler.fail(failure.cause)
        self._heart.step_began = None
        if events:
            self._channel.send(codec.encode(events))
        self._heart.gauges = self._gauges()

    def _gauges(self) -> Gauges:
        return msgspec.structs.replace(self._scheduler.gauges(), **self._gate.counts())

    @property
    def launched(self) -> int:
        """Steps launched and not applied."""
        return len(self._launched)

    def _step(self, events: list[FromEngine]) -> None:
        """One step; what is to be told goes into events, also when the step fails midway."""
        plan = self._scheduler.plan()
        step = None
        if plan is not None:
            with _computing():
                step = self._executor.launch(plan)
        if self._launched:  # with overlap: the previous step, while this one runs
            events += self._apply()
        if step is not None:
            guides = self._scheduler.guides()
            mask = self._gate.rows(guides) if guides else None
            with _computing():
                step.sample(mask)
            self._launched.append(step)
            if not self._overlap:
                events += self._apply()

    def _apply(self) -> list[FromEngine]:
        with _computing():
            result = self._launched.popleft().result()
        return self._scheduler.apply(result)

    def _drain(self) -> list[FromEngine]:
        """Handle what has arrived; sleep only when there is nothing to compute."""
        wait: float | None = 0
        if self._scheduler.idle and not self._launched:
            wait = COMPILING_SECONDS if self._gate.held else None
        due = self._scheduler.followers()
        events, count = self._take(wait)
        until = time.monotonic() + FOLLOW_SECONDS if count < due else 0.0
        while count < due and time.monotonic() < until:
            more, fresh = self._take(FOLLOW_SECONDS / 2)
            events, count = events + more, count + fresh
        for generate, found in self._gate.ready():
            events += self._compiled(generate, found)
        return events

    def _take(self, wait: float | None) -> tuple[list[FromEngine], int]:
        """Handle what has arrived; also how many requests did."""
        events: list[FromEngine] = []
        count = 0
        for frame in self._channel.drain(wait):
            for message in codec.decode_to_engine(frame):
                events += self._handle(message)
                count += isinstance(message, Generate)
        return events, count

    def _compiled(self, message: Generate, found: Guide | RequestError) -> list[FromEngine]:
        if isinstance(found, RequestError):
            return [finished(message.rid, FinishReason.ERROR, error=found)]
        return self._scheduler.handle(message, found)

    def _handle(self, message: ToEngine) -> Sequence[FromEngine]:
        match message:
            case Generate():
                return self._generate(message)
            case Abort():
                if self._gate.cancel(message.rid):
                    return [Finished(rid=message.rid, reason=FinishReason.ABORT)]
                return self._scheduler.abort(message.rid)
            case Control():
                return self._control(message)
            case ProgramEnd():
                self._scheduler.end_program((message.namespace, message.id))
                return ()
            case Setup():
                raise RadixServeError("Setup came twice")
            case _ as never:
                assert_never(never)

    def _generate(self, message: Generate) -> Sequence[FromEngine]:
        if message.constraint is None:
            return self._scheduler.handle(message, self._gate.thinker(message))
        refusal = self._scheduler.refusal(message, self._gate.held)
        if refusal is not None:
            return [refusal]
        self._gate.hold(message)
        return ()

    def _control(self, message: Control) -> list[FromEngine]:
        cache = self._scheduler.cache
        flushed, stats = 0, None
        tree: list[TreeNode] = []
        if message.op == "stop":
            self._stopping = True
        elif message.op == "flush":
            flushed = cache.flush()
        elif message.op == "cache":
            stats = cache.stats()
            tree = cache.listing(message.namespace, message.depth, message.limit)
        return [ControlReply(message.id, self._gauges(), flushed, stats, tree)]


class Heart:
    """Sends Stats from a thread of its own, so that a long step does not look like death.

    step_began: monotonic seconds, of the step under way.
    """

    def __init__(self, channel: EngineChannel) -> None:
        self.gauges = Gauges()
        self.step_began: float | None = None
        self._channel = channel
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            self._channel.heartbeat(codec.encode([Stats(self._gauges_now())]))

    def _gauges_now(self) -> Gauges:
        began = self.step_began
        if began is None:
            return self.gauges
        return msgspec.structs.replace(self.gauges, step_seconds=time.monotonic() - began)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def serve(channel: EngineChannel, *, is_alone: bool = False) -> None:
    """An engine's whole life: wait for Setup, load, say Ready, run until told to stop.

    is_alone: in a process of its own.
    """
    heart = Heart(channel)
    try:
        setup = _wait_for_setup(channel)
        if setup is None:
            return
        try:
            loop, ready = _build(channel, heart, setup)
        except (RadixServeError, MemoryError) as error:
            channel.send(codec.encode([Ready(error=f"{type(error).__name__}: {error}")]))
            return
        if is_alone:
            gc.collect()
            gc.freeze()  # looking through what stays for good stops everything for tens of ms
        channel.send(codec.encode([ready]))
        loop.run()
    finally:
        heart.stop()
        channel.close()


def _wait_for_setup(channel: EngineChannel) -> Setup | None:
    """The first message; None when the front stops before it has sent one."""
    while True:
        for frame in channel.drain(None):
            for message in codec.decode_to_engine(frame):
                if isinstance(message, Setup):
                    return message
                if isinstance(message, Control) and message.op == "stop":
                    return None


def _build(channel: EngineChannel, heart: Heart, setup: Setup) -> tuple[Loop, Ready]:
    # torch is imported here, after the heartbeat has begun.
    from radixserve.cache import is_compiled
    from radixserve.cache.prefix import PrefixCache
    from radixserve.executor.load import load_executor

    config = msgspec.json.decode(setup.config, type=Config)
    loaded = load_executor(config, valid_ids=len(setup.token_bytes))
    cache = PrefixCache(
        loaded.pages,
        config.cache.page_size,
        enabled=config.cache.prefix_cache,
        audit=config.cache.audit,
        warm_share=config.cache.warm_share,
    )
    logger.info("cache: the radix tree %s", "is compiled" if is_compiled() else "runs as Python")
    if config.schedule.policy == "program":
        cache.keep_for_programs(config.cache.program_share, config.cache.program_seconds)
    shares = config.schedule.shared_attention and loaded.shares_prefixes
    scheduler = Scheduler(
        msgspec.structs.replace(config.schedule, shared_attention=shares),
        cache,
        context_len=loaded.context_len,
        vocab_size=len(setup.token_bytes),
        stop_ids=setup.stop_ids,
        token_bytes=setup.token_bytes,
    )
    gate = Gate(config.grammar, setup, loaded.columns, config.model.threads)
    heart.gauges = scheduler.gauges()
    ready = Ready(
        model=config.model.model,
        context_len=loaded.context_len,
        vocab_size=len(setup.token_bytes),
        kv_tokens=loaded.pages * config.cache.page_size,
        dtype=loaded.dtype,
        pid=os.getpid(),
    )
    overlap = config.schedule.overlap == "on"
    return Loop(channel, scheduler, loaded.executor, heart, gate, overlap=overlap), ready


def _die_with_parent(endpoint: str) -> None:
    """End at once when the pipe on standard input closes: the parent is gone.

    It may have had no time to remove the folder of its endpoints.
    """

    def watch() -> None:
        while os.read(0, 4096):
            pass
        shutil.rmtree(pathlib.Path(endpoint.removeprefix("ipc://")).parent, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def main(arguments: Sequence[str]) -> None:
    """python -m radixserve.loop DOWN UP: run an engine between two ipc endpoints."""
    log.configure("engine")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front decides when the engine stops
    down, up = arguments
    _die_with_parent(up)
    serve(ZmqEngine(down, up), is_alone=True)


if __name__ == "__main__":
    main(sys.argv[1:])
