"""JSON over HTTP for the backends: one client for threads, one for each event loop that calls.

Owns: httpx, server-sent events, which calls of a loop are sent first, turning error envelopes and
lost connections into BackendError. Must not know: routes, what a body says.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from radixserve.lang.errors import BackendError

if TYPE_CHECKING:
    import httpx

_CONNECT_SECONDS = 10.0
# Many servers close a connection that was idle for 5 s, and a call sent in that moment is lost.
IDLE_SECONDS = 2.0

SENDING = 8
"""Calls of a loop that connect and send side by side. Were there no bound, of many that begin
together the first would be sent when the last has its connection, and the server would have nothing
to do until then."""
PATIENCE = 0.1  # seconds that a call waits for its turn to send: a dead host holds up nobody


class Transport:
    """timeout: seconds without a byte after which a call fails. verify: as in httpx."""

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        timeout: float,
        verify: bool | str = True,
    ) -> None:
        import httpx

        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url {base_url!r} must begin with http:// or https://")
        self._options: dict[str, Any] = {
            "base_url": base_url.rstrip("/"),
            "headers": dict(headers),
            # Reading the machine's certificates takes longer than many calls do.
            "verify": verify if base_url.startswith("https:") else False,
            "timeout": httpx.Timeout(timeout, connect=_CONNECT_SECONDS, pool=None),
            "limits": httpx.Limits(max_connections=None, keepalive_expiry=IDLE_SECONDS),
        }
        self._client = httpx.Client(**self._options)
        self._holders: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[_LoopClient, AsyncGenerator[None, None]]
        ] = weakref.WeakKeyDictionary()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The reply's JSON, its text where it is none, None where it is empty."""
        with _lost():
            return _read(self._client.request(method, path, json=body))

    def events(self, path: str, body: Any) -> Iterator[str]:
        """The data of each event, up to "[DONE]" or the end."""
        with _lost(), self._client.stream("POST", path, json=body) as response:
            if response.is_error:
                response.read()
                raise _refusal(response)
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    return
                if line.startswith("data:"):
                    yield line[5:].lstrip()

    async def aask(self, method: str, path: str, body: Any = None) -> Any:
        here = await self._here()
        with _lost():
            async with here.turn() as extensions:
                return _read(
                    await here.client.request(method, path, json=body, extensions=extensions)
                )

    async def aevents(self, path: str, body: Any) -> AsyncGenerator[str, None]:
        here = await self._here()
        with _lost():
            async with (
                here.turn() as extensions,
                here.client.stream("POST", path, json=body, extensions=extensions) as response,
            ):
                if response.is_error:
                    await response.aread()
                    raise _refusal(response)
                async for line in response.aiter_lines():
                    if line == "data: [DONE]":
                        return
                    if line.startswith("data:"):
                        yield line[5:].lstrip()

    def close(self) -> None:
        """Close the connections of threads; calls in flight fail.

        A loop's close when asyncio.run() or whoever ends it shuts its async generators down.
        """
        self._client.close()

    async def aclose(self) -> None:
        """Close the running loop's connections now."""
        _, holder = self._holders.pop(asyncio.get_running_loop(), (None, None))
        if holder is not None:
            await holder.aclose()

    async def _here(self) -> _LoopClient:
        loop = asyncio.get_running_loop()
        if loop not in self._holders:
            import httpx

            client = httpx.AsyncClient(**self._options)
            # The loop closes its async generators when it ends, and this one its client.
            holder = self._hold(client)
            await anext(holder)
            self._holders[loop] = _LoopClient(client), holder
        return self._holders[loop][0]

    async def _hold(self, client: httpx.AsyncClient) -> AsyncGenerator[None, None]:
        loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            self._holders.pop(loop, None)  # what is kept for a loop may know it
            await client.aclose()


class _LoopClient:
    """A loop's connections, and whose turn it is to send."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self._turns = asyncio.Semaphore(SENDING)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncGenerator[dict[str, Any], None]:
        """A call's turn, which is over when its body has gone out; the extensions of its request,
        which tell that."""
        is_held = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE if self._turns.locked() else None):
                is_held = await self._turns.acquire()

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            if event.endswith(".send_request_body.complete"):
                leave()

        def leave() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._turns.release()

        try:
            yield {"trace": trace}
        finally:
            leave()


def _read(response: httpx.Response) -> Any:
    if response.is_error:
        raise _refusal(response)
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError:
        return response.text


def _refusal(response: httpx.Response) -> BackendError:
    status, after = response.status_code, _seconds(response.headers.get("retry-after"))
    try:
        return envelope_error(status, response.json()["error"], after)
    except (ValueError, KeyError, TypeError, AttributeError):
        where = response.request.url
        text = f"{where}: {response.text[:500]}"
        return BackendError(status, "http_error", text, retry_after=after)


def envelope_error(
    status: int, error: Mapping[str, Any], retry_after: float | None = None
) -> BackendError:
    """The error that {"message", "type", "code", "param"} describes."""
    code = error.get("code") or error.get("type") or "error"
    message = str(error.get("message"))
    return BackendError(status, str(code), message, error.get("param"), retry_after)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:  # a date
        return None


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        try:
            where = f" ({error.request.url})"
        except RuntimeError:  # httpx raised it before there was a request
            where = ""
        message = f"{type(error).__name__}: {error}{where}"
        raise BackendError(0, "connection_error", message) from error
