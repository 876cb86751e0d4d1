"""A server's life: take the port, answer that the model loads, load it, serve, and end when told.

Owns: the listening socket, uvicorn, what signals do, the engine's restarts. Must not know: routes.

The first SIGTERM or SIGINT stops gently: new calls get 503, open ones get `grace` seconds and are
then aborted, so that every stream has an end; the process exits with 0. A second one ends at once.
While the model loads, the first one ends the loading.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.metadata
import signal
import socket
import ssl
from collections.abc import Callable, Generator
from typing import Literal

import msgspec
import uvicorn

from radixserve.api.app import create_app
from radixserve.api.door import OperatedDoor
from radixserve.api.life import Life
from radixserve.api.protocol import Protocol
from radixserve.api.tenants import load_tenants
from radixserve.config.schema import Config, HttpConfig
from radixserve.errors import ConfigError, RadixServeError
from radixserve.gateway import Gateway
from radixserve.launch import Launched, launch
from radixserve.log import logger
from radixserve.metrics.prometheus import Metrics, Observation
from radixserve.metrics.tracing import Traces, otlp_provider

ABORT_SECONDS = 2
# Clients and proxies keep idle connections, most for 60 s at most. They must be the first to close
# one: a call that is sent in the moment in which the server does is lost.
KEEP_ALIVE_SECONDS = 75
RESTART_SECONDS = (1.0, 30.0)  # before a failed restart is tried again: at first, at most


class _Uvicorn(uvicorn.Server):
    """Leaves signals alone: uvicorn would raise them again at its end, before we are done."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def check_http(http: HttpConfig) -> int:
    """How many keys there are, once the port, certificate and keys were found to be usable.

    Raises ConfigError as serve() would.
    """
    _listen(http).close()
    _check_tls(http)
    return len(load_tenants(http))


async def serve(config: Config) -> None:
    """Serve until a signal comes. Raises ConfigError, before any weights are read, when the port
    cannot be had or a key, certificate or setting cannot be used, and what launch() raises."""
    with contextlib.closing(_listen(config.http)) as listener:
        await _Server(config, listener).run()


class _Server:
    def __init__(self, config: Config, listener: socket.socket) -> None:
        self._config = config
        self._listener = listener
        self._life = Life("loading")
        self._metrics = Metrics()
        endpoint = config.http.otlp_endpoint
        self._traces = Traces(otlp_provider(endpoint)) if endpoint else None
        self._door = OperatedDoor(None, config.http)
        self._uvicorn = _Uvicorn(self._settings())

    async def run(self) -> None:
        serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._listener]))
        try:
            await self._load_and_serve(serving)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            if self._traces is not None:
                await asyncio.to_thread(self._traces.close)

    async def _load_and_serve(self, serving: asyncio.Task[None]) -> None:
        recorders = [each for each in (self._metrics, self._traces) if each is not None]
        loading = asyncio.create_task(launch(self._config, recorders=recorders))
        _on_signals(loading.cancel, loading.cancel)
        try:
            launched = await loading
        except asyncio.CancelledError:
            logger.info("stopped while loading")
            return
        stopping: list[asyncio.Task[None]] = []

        def gently() -> None:
            stopping.append(asyncio.create_task(self._drain(launched.gateway)))

        at_once = asyncio.Event()

        def now() -> None:
            at_once.set()
            serving.cancel()

        _on_signals(gently, now)
        self._open(launched.gateway)
        supervising = asyncio.create_task(self._supervise(launched))
        try:
            await asyncio.wait([serving])
        finally:
            for task in (supervising, *stopping):
                task.cancel()
            await asyncio.gather(supervising, *stopping, return_exceptions=True)
            await launched.close(at_once=at_once.is_set())
        if not serving.cancelled():
            serving.result()  # it ended because it was told to, or this raises why

    def _open(self, gateway: Gateway) -> None:
        def observe() -> Observation:
            gauges = msgspec.structs.asdict(gateway.last_gauges)
            return Observation(gateway.alive, gateway.in_flight, gauges)

        self._metrics.describe(
            version=importlib.metadata.version("radixserve"), model=gateway.model_name
        )
        self._metrics.watch(observe)
        self._door.open(gateway)
        gc.collect()
        gc.freeze()  # looking through what stays for good stops every stream for tens of ms
        self._life.phase = "serving"
        host, port = self._listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        scheme = "https" if self._config.http.ssl_certfile else "http"
        logger.info("serving %s on %s://%s:%d", gateway.model_name, scheme, host, port)

    async def _drain(self, gateway: Gateway) -> None:
        grace = self._config.http.grace
        logger.info("stopping; open requests have %.0f s", grace)
        self._life.phase = "draining"
        if not await self._life.quiet(grace):
            gateway.abort_all()
            await self._life.quiet(ABORT_SECONDS)
        self._uvicorn.should_exit = True

    async def _supervise(self, launched: Launched) -> None:
        pause, longest = RESTART_SECONDS
        while self._config.http.supervise:
            logger.error("the engine is started again: %s", await launched.failure())
            last = msgspec.structs.asdict(launched.gateway.last_gauges)
            self._enter("loading")
            try:
                await launched.restart()
            except RadixServeError as error:
                logger.error("the engine did not start, next try in %.0f s: %s", pause, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)
            else:
                self._metrics.restarted_engine(last)
                pause = RESTART_SECONDS[0]
                self._enter("serving")
                logger.info("the engine is back")

    def _enter(self, phase: Literal["loading", "serving"]) -> None:
        """Unless the server is stopping."""
        if self._life.phase != "draining":
            self._life.phase = phase

    def _settings(self) -> uvicorn.Config:
        http = self._config.http
        _check_tls(http)
        return uvicorn.Config(
            create_app(self._door, self._config, life=self._life, metrics=self._metrics),
            http=Protocol,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=ABORT_SECONDS,
            ssl_certfile=http.ssl_certfile or None,
            ssl_keyfile=http.ssl_keyfile or None,
        )


def _check_tls(http: HttpConfig) -> None:
    if not http.ssl_certfile:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            http.ssl_certfile,
            http.ssl_keyfile,
            password="",  # else it would ask on a terminal
        )
    except OSError as error:  # SSLError is one
        raise ConfigError(f"--ssl-certfile, --ssl-keyfile: {error}") from error


def _on_signals(first: Callable[[], object], again: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    seen = False

    def arrived() -> None:
        nonlocal seen
        (again if seen else first)()
        seen = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, arrived)


def _listen(http: HttpConfig) -> socket.socket:
    host, port = http.host, http.port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # Named, or asyncio would not know that connections are TCP and leave Nagle's algorithm on:
        # the body of an answer then waits 40 ms for the acknowledgement of its headers.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise ConfigError(f"host {host!r}: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if http.reader_timeout and hasattr(socket, "TCP_USER_TIMEOUT"):
            # Connections inherit it: the kernel ends those whose peer acknowledges nothing.
            milliseconds = int(http.reader_timeout * 1000)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        listener.bind((host, port))
        listener.listen(2048)  # taken for good: a second server finds out before it loads
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    return listener
