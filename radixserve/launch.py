"""Starts an engine and watches it.

Owns: the child process (or, inline, the thread), its pipe and its end. The child is started by
module name, gets its configuration as the first message, and dies with this process: it reads
end-of-file on its standard input. Must not know: requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import psutil

from radixserve import env
from radixserve.config.resolve import resolve
from radixserve.config.schema import Config
from radixserve.errors import EngineDead, ModelLoadError
from radixserve.gateway import Gateway, Watched
from radixserve.metrics.trail import Recorder
from radixserve.models.spec import read_spec
from radixserve.text.renderer import Renderer
from radixserve.warm import WarmPrompt, read_prompts, warm_up
from radixserve.weights import source
from radixserve.wire import codec
from radixserve.wire.channels import FrontChannel, MemoryFront, ZmqFront
from radixserve.wire.messages import Control, Ready, Setup

KILL_AFTER = 5.0
HANG_SECONDS = 20.0


class Child(Watched, Protocol):
    """A running engine."""

    def end(self, timeout: float) -> None:
        """Wait up to timeout seconds for it to end by itself, then make it."""


class ProcessChild:
    """python -m radixserve.loop, in a session of its own so that Ctrl-C does not reach it."""

    def __init__(self, channel: ZmqFront, log_format: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "radixserve.loop", *channel.endpoints],
            stdin=subprocess.PIPE,
            env=env.of_engine(log_format),
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._used = 0.0  # processor seconds at the last look

    def alive(self) -> bool:
        return self._process.poll() is None

    def working(self) -> bool:
        try:
            child = psutil.Process(self.pid)
            waits = child.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
            times = child.cpu_times()
        except psutil.Error:
            return False
        used = times.user + times.system
        has_run = used > self._used
        self._used = used
        return has_run or waits

    def end(self, timeout: float) -> None:
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


class ThreadChild:
    """The loop in a thread of this process, over in-memory channels."""

    def __init__(self, channel: MemoryFront) -> None:
        from radixserve import loop  # brings torch, which only an inline front may have

        self._thread = threading.Thread(
            target=loop.serve, args=(channel.engine,), name="engine", daemon=True
        )
        self._thread.start()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def working(self) -> bool:
        return self.alive()

    def end(self, timeout: float) -> None:
        self._thread.join(timeout)


@dataclass(frozen=True, slots=True)
class Site:
    """What every engine of one front is started with.

    setup: the first message down. warm: prompts to compute first.
    """

    config: Config
    renderer: Renderer
    setup: bytes
    warm: tuple[WarmPrompt, ...]
    inline: bool

    @classmethod
    async def prepare(cls, config: Config, *, inline: bool) -> Site:
        """Load the text side. Raises ConfigError or ModelLoadError."""
        config = resolve(config)
        origin = await asyncio.to_thread(source.resolve, config.model.model)
        spec = await asyncio.to_thread(read_spec, origin)
        renderer = await asyncio.to_thread(Renderer.load, origin, config.text)
        tokenizer = renderer.tokenizer
        setup = Setup(
            config=msgspec.json.encode(config),
            token_bytes=list(tokenizer.token_bytes),
            stop_ids=sorted({*tokenizer.eos_ids, *spec.eos_ids}),
            tokenizer=tokenizer.to_engine(),
            marks=renderer.marks,
        )
        warm = await asyncio.to_thread(read_prompts, config.cache.warm, renderer)
        return cls(config, renderer, codec.encode([setup]), warm, inline)

    async def start(self) -> tuple[FrontChannel, Ready, Child]:
        """An engine with the model loaded. Raises ModelLoadError, or EngineDead."""
        channel: FrontChannel
        child: Child
        if self.inline:
            memory = channel = MemoryFront()
            child = ThreadChild(memory)
        else:
            sockets = channel = ZmqFront()
            child = ProcessChild(sockets, self.config.http.log_format)
        try:
            channel.send(self.setup)
            return channel, await _wait_ready(channel, child.alive), child
        except BaseException:
            channel.send(codec.encode([Control("0", "stop")]))
            child.end(0 if not self.inline else KILL_AFTER)
            channel.close()
            raise


class Launched:
    """A gateway and the child behind it."""

    def __init__(self, site: Site, gateway: Gateway, child: Child) -> None:
        self.gateway = gateway
        self._site = site
        self._child = child

    async def restart(self) -> None:
        """Put a new engine in place of one that has ended or hangs; open requests get EngineDead.

        Raises what launch() raises; then there is no engine.
        """
        self.gateway.give_up("the engine is being started again")
        await asyncio.to_thread(self._child.end, 0)
        channel, ready, self._child = await self._site.start()
        await self.gateway.attach(channel, ready, self._child)
        await self.warm_up()

    async def warm_up(self) -> None:
        """Compute the warm prompts. Raises ConfigError for one that does not fit."""
        await warm_up(self._site.warm, self.gateway.submit)

    async def failure(self) -> str:
        """Returns, with what is wrong, when the engine has ended, or has been silent or stuck in
        one step for HANG_SECONDS."""
        loop = asyncio.get_running_loop()
        well = loop.time()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.gateway.ended.wait(), 0.5)
            trouble = self.gateway.trouble
            if trouble is None:
                well = loop.time()
            elif self.gateway.dead is not None or loop.time() - well > HANG_SECONDS:
                return str(trouble)

    async def close(self, *, at_once: bool = False) -> None:
        """Stop the engine and free everything; open requests end with EngineDead.

        at_once: without waiting for the step under way.
        """
        await self.gateway.close(0 if at_once else KILL_AFTER)
        await asyncio.to_thread(self._child.end, 0 if at_once else KILL_AFTER)


async def launch(
    config: Config, *, inline: bool = False, recorders: Sequence[Recorder] = ()
) -> Launched:
    """Load the text side, start the engine, wait until it is ready.

    recorders: are told how requests went. Raises ConfigError, ModelLoadError, or EngineDead when
    the child ends while it loads.
    """
    site = await Site.prepare(config, inline=inline)
    channel, ready, child = await site.start()
    gateway = Gateway(site.config, channel, site.renderer, ready, child, recorders)
    launched = Launched(site, gateway, child)
    try:
        await launched.warm_up()
    except BaseException:
        await launched.close(at_once=True)
        raise
    return launched


async def _wait_ready(channel: FrontChannel, alive: Callable[[], bool]) -> Ready:
    while True:
        frame = None
        with contextlib.suppress(TimeoutError):
            frame = await asyncio.wait_for(channel.receive(), 0.5)
        if frame is None:
            if not alive():
                raise EngineDead("the engine process ended while it was loading the model")
            continue
        for message in codec.decode_from_engine(frame):
            if isinstance(message, Ready):
                if message.error:
                    raise ModelLoadError(message.error)
                return message
