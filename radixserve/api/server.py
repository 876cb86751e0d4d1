"""A server's life: take the port, start the engine, serve, and end when a signal says so.

Owns: the listening socket, uvicorn, what signals do. Must not know: routes.

The first SIGTERM or SIGINT stops gently: no new connections, open requests get `grace` seconds and
are then aborted, so that every stream has an end; the process exits with 0. A second one ends at
once. While the model loads, the first one ends the loading.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Generator

import uvicorn

from radixserve.api.app import create_app
from radixserve.config.schema import Config
from radixserve.errors import ConfigError
from radixserve.launch import Launched, launch
from radixserve.log import logger

ABORT_SECONDS = 2


class _Server(uvicorn.Server):
    """Leaves signals alone: uvicorn would raise them again at its end, before we are done."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def serve(config: Config) -> None:
    """Serve until a signal comes. Raises ConfigError, before any weights are read, when the port
    cannot be had, and what launch() raises."""
    with contextlib.closing(_listen(config.http.host, config.http.port)) as listener:
        loading = asyncio.create_task(launch(config))
        _on_signals(loading.cancel, loading.cancel)
        try:
            launched = await loading
        except asyncio.CancelledError:
            logger.info("stopped while loading")
            return
        try:
            await _serve(config, launched, listener)
        finally:
            await launched.close()


async def _serve(config: Config, launched: Launched, listener: socket.socket) -> None:
    gateway = launched.gateway
    server = _Server(
        uvicorn.Config(
            create_app(gateway, config),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=int(config.http.grace) + ABORT_SECONDS,
        )
    )
    loop = asyncio.get_running_loop()

    def gently() -> None:
        logger.info("stopping; open requests have %.0f s", config.http.grace)
        server.should_exit = True
        loop.call_later(config.http.grace, gateway.abort_all)

    def at_once() -> None:
        server.force_exit = True

    _on_signals(gently, at_once)
    host, port = listener.getsockname()[:2]
    logger.info("serving %s on http://%s:%d", gateway.model_name, host, port)
    await server.serve(sockets=[listener])


def _on_signals(first: Callable[[], object], again: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    seen = False

    def arrived() -> None:
        nonlocal seen
        (again if seen else first)()
        seen = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, arrived)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"host {host!r}: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)  # taken for good: a second server finds out before it loads
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    return listener
