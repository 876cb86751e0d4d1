"""A backend on a server: POST /generate and its neighbours.

Owns: the routes of our own server. Must not know: programs, sockets.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

from radixserve.lang.backends.base import Body, Reply
from radixserve.lang.backends.transport import Transport, envelope_error


class RuntimeEndpoint:
    """base_url: where the server listens, http://host:port. api_key: sent as a bearer token.

    timeout: seconds without a byte after which a call fails. verify: as in httpx.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: bool | str = True,
        chat_template_name: str | None = None,
        timeout: float = 600.0,
    ) -> None:
        if chat_template_name is not None:
            raise NotImplementedError(
                "chat_template_name is not implemented: the model's own template is used"
            )
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = Transport(base_url, headers, timeout, verify)

    def generate(self, body: Body) -> Reply | list[Reply]:
        return cast("Reply | list[Reply]", self._http.ask("POST", "/generate", body))

    def choose(self, body: Body) -> Reply:
        return cast("Reply", self._http.ask("POST", "/generate", body))

    def stream(self, body: Body) -> Iterator[Reply]:
        for data in self._http.events("/generate", body):
            yield _chunk(data)

    async def agenerate(self, body: Body) -> Reply | list[Reply]:
        return cast("Reply | list[Reply]", await self._http.aask("POST", "/generate", body))

    async def achoose(self, body: Body) -> Reply:
        return cast("Reply", await self._http.aask("POST", "/generate", body))

    async def astream(self, body: Body) -> AsyncGenerator[Reply, None]:
        async with contextlib.aclosing(self._http.aevents("/generate", body)) as events:
            async for data in events:
                yield _chunk(data)

    def program(self, body: Body) -> dict[str, Any]:
        return cast("dict[str, Any]", self._http.ask("POST", "/v1/programs", body))

    async def aprogram(self, body: Body) -> dict[str, Any]:
        return cast("dict[str, Any]", await self._http.aask("POST", "/v1/programs", body))

    async def astream_program(self, body: Body) -> AsyncGenerator[dict[str, Any], None]:
        async with contextlib.aclosing(self._http.aevents("/v1/programs", body)) as events:
            async for data in events:
                event = json.loads(data)
                if "error" in event and "call" not in event:
                    raise envelope_error(500, event["error"])
                yield event

    def warm(self, body: Body) -> Reply:
        return cast("Reply", self._http.ask("POST", "/generate", body))

    def abort(self, rid: str) -> None:
        self._http.ask("POST", "/abort_request", {"rid": rid})

    def flush_cache(self) -> None:
        self._http.ask("POST", "/flush_cache")

    def get_server_info(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self._http.ask("GET", "/get_server_info"))

    def get_model_info(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self._http.ask("GET", "/get_model_info"))

    def close(self) -> None:
        """Close the connections; calls in flight fail."""
        self._http.close()

    async def aclose(self) -> None:
        """Close the connections that the running loop has used."""
        await self._http.aclose()


def _chunk(data: str) -> Reply:
    chunk = json.loads(data)
    if "error" in chunk:
        raise envelope_error(500, chunk["error"])
    return cast("Reply", chunk)
