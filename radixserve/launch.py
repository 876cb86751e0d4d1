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
from collections.abc import Callable
from typing import Protocol

import msgspec
import psutil

from radixserve import env
from radixserve.config.resolve import resolve
from radixserve.config.schema import Config
from radixserve.errors import EngineDead, ModelLoadError
from radixserve.gateway import Gateway, Watched
from radixserve.models.spec import read_spec
from radixserve.text.renderer import Renderer
from radixserve.weights import source
from radixserve.wire import codec
from radixserve.wire.channels import FrontChannel, MemoryFront, ZmqFront
from radixserve.wire.messages import Control, Ready, Setup

KILL_AFTER = 5.0


class Child(Watched, Protocol):
    """A running engine."""

    def end(self, timeout: float) -> None:
        """Wait up to timeout seconds for it to end by itself, then make it."""


class ProcessChild:
    """python -m radixserve.loop, in a session of its own so that Ctrl-C does not reach it."""

    def __init__(self, channel: ZmqFront) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "radixserve.loop", *channel.endpoints],
            stdin=subprocess.PIPE,
            env=env.of_engine(),
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


class Launched:
    """A gateway and the child behind it."""

    def __init__(self, gateway: Gateway, child: Child) -> None:
        self.gateway = gateway
        self._child = child

    async def close(self) -> None:
        """Stop the engine and free everything; open requests end with EngineDead."""
        await self.gateway.close()
        await asyncio.to_thread(self._child.end, KILL_AFTER)


async def launch(config: Config, *, inline: bool = False) -> Launched:
    """Load the text side, start the engine, wait until it is ready.

    Raises ConfigError, ModelLoadError, or EngineDead when the child ends while it loads.
    """
    config = resolve(config)
    origin = await asyncio.to_thread(source.resolve, config.model.model)
    spec = await asyncio.to_thread(read_spec, origin)
    renderer = await asyncio.to_thread(Renderer.load, origin, config.text)
    tokenizer = renderer.tokenizer
    setup = Setup(
        config=msgspec.json.encode(config),
        token_bytes=list(tokenizer.token_bytes),
        stop_ids=sorted({*tokenizer.eos_ids, *spec.eos_ids}),
    )
    channel: FrontChannel
    child: Child
    if inline:
        memory = channel = MemoryFront()
        child = ThreadChild(memory)
    else:
        sockets = channel = ZmqFront()
        child = ProcessChild(sockets)
    try:
        channel.send(codec.encode([setup]))
        ready = await _wait_ready(channel, child.alive)
    except BaseException:
        channel.send(codec.encode([Control("0", "stop")]))
        child.end(0 if not inline else KILL_AFTER)
        channel.close()
        raise
    return Launched(Gateway(config, channel, renderer, ready, child), child)


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
