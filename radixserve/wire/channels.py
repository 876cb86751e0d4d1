"""The roads between front and engine: frames of bytes, in order, none dropped.

Owns: every socket of the project (nothing else imports zmq) and the in-memory twin that the inline
engine and the tests use. Sends never block: sockets have no high-water mark, and the gateway
bounds what a stream may hold. Must not know: what a frame says.

The front is an asyncio program, the engine a plain loop; hence the two protocols.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import queue
import shutil
import tempfile
from typing import Any, Protocol

import zmq
import zmq.asyncio


class FrontChannel(Protocol):
    """The front's end."""

    def send(self, frame: bytes) -> None:
        """Hand one frame to the engine; from the event loop's thread only."""

    async def receive(self) -> bytes:
        """The next frame from the engine."""

    def close(self) -> None: ...


class EngineChannel(Protocol):
    """The engine's end."""

    def drain(self, timeout: float | None) -> list[bytes]:
        """Frames that have arrived; with none, wait up to timeout seconds (None: for ever)."""

    def send(self, frame: bytes) -> None:
        """Hand one frame to the front; from the loop's thread only."""

    def heartbeat(self, frame: bytes) -> None:
        """The same from the heartbeat thread."""

    def close(self) -> None: ...


def _socket(context: Any, kind: int) -> Any:
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)
    return socket


class ZmqFront:
    """Two ipc endpoints in a directory of its own, removed by close().

    The front connects to `down`, which the engine binds: a connected socket keeps what it is given
    while there is no peer, before the engine is up and after its death, where a bound one blocks.
    """

    def __init__(self) -> None:
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="radixserve-"))
        self.endpoints = (f"ipc://{self._folder}/down", f"ipc://{self._folder}/up")
        self._context = zmq.asyncio.Context()
        self._down = _socket(zmq.Context(self._context), zmq.PUSH)
        self._up = _socket(self._context, zmq.PULL)
        self._down.connect(self.endpoints[0])
        self._up.bind(self.endpoints[1])

    def send(self, frame: bytes) -> None:
        self._down.send(frame, zmq.NOBLOCK)

    async def receive(self) -> bytes:
        frame: bytes = await self._up.recv()
        return frame

    def close(self) -> None:
        self._down.close()
        self._up.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)


class ZmqEngine:
    """The other end of a ZmqFront's endpoints."""

    def __init__(self, down: str, up: str) -> None:
        self._context = zmq.Context()
        self._down = _socket(self._context, zmq.PULL)
        self._up = _socket(self._context, zmq.PUSH)
        self._beat = _socket(self._context, zmq.PUSH)
        self._down.bind(down)
        self._up.connect(up)
        self._beat.connect(up)

    def drain(self, timeout: float | None) -> list[bytes]:
        frames: list[bytes] = []
        if self._down.poll(None if timeout is None else int(timeout * 1000)):
            try:
                while True:
                    frames.append(self._down.recv(zmq.NOBLOCK))
            except zmq.Again:
                pass
        return frames

    def send(self, frame: bytes) -> None:
        self._up.send(frame)

    def heartbeat(self, frame: bytes) -> None:
        self._beat.send(frame)

    def close(self) -> None:
        for socket in (self._down, self._up, self._beat):
            socket.setsockopt(zmq.LINGER, 500)
            socket.close()
        self._context.term()


class MemoryFront:
    """The front's end of an in-memory road; made on the event loop that will receive."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._up: asyncio.Queue[bytes] = asyncio.Queue()
        self._down: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.engine: EngineChannel = MemoryEngine(self)

    def send(self, frame: bytes) -> None:
        self._down.put(frame)

    async def receive(self) -> bytes:
        return await self._up.get()

    def close(self) -> None:
        """Nothing to free."""

    def deliver(self, frame: bytes) -> None:
        """From the engine's threads: put a frame where receive() finds it."""
        with contextlib.suppress(RuntimeError):  # the loop may have closed meanwhile
            self._loop.call_soon_threadsafe(self._up.put_nowait, frame)

    def take(self, timeout: float | None) -> list[bytes]:
        """For the engine's thread: see EngineChannel.drain."""
        frames: list[bytes] = []
        try:
            frames.append(self._down.get(timeout != 0, timeout))
            while True:
                frames.append(self._down.get_nowait())
        except queue.Empty:
            pass
        return frames


class MemoryEngine:
    """The engine's end of a MemoryFront."""

    def __init__(self, front: MemoryFront) -> None:
        self._front = front

    def drain(self, timeout: float | None) -> list[bytes]:
        return self._front.take(timeout)

    def send(self, frame: bytes) -> None:
        self._front.deliver(frame)

    def heartbeat(self, frame: bytes) -> None:
        self._front.deliver(frame)

    def close(self) -> None:
        """Nothing to free."""
