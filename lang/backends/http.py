"""A backend on a server: POST /generate and its neighbours over httpx.

Owns: transport, server-sent events, and turning error envelopes and lost connections into
BackendError. Must not know: programs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from radixserve.lang.backends.base import Body, Reply
from radixserve.lang.errors import BackendError

if TYPE_CHECKING:
    import httpx


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
        import httpx

        if chat_template_name is not None:
            raise NotImplementedError(
                "chat_template_name is not implemented: the model's own template is used"
            )
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url {base_url!r} must begin with http:// or https://")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(
            base_url=base_url.rstrip("/"),
            headers=headers,
            verify=verify,
            timeout=httpx.Timeout(timeout, connect=10.0, pool=None),
            limits=httpx.Limits(max_connections=None),
        )

    def generate(self, body: Body) -> Reply | list[Reply]:
        return cast("Reply | list[Reply]", self._ask("POST", "/generate", body))

    def choose(self, body: Body) -> Reply:
        return cast("Reply", self._ask("POST", "/generate", body))

    def stream(self, body: Body) -> Iterator[Reply]:
        import httpx

        try:
            with self._client.stream("POST", "/generate", json=body) as response:
                if response.is_error:
                    response.read()
                    raise _refusal(response)
                for line in response.iter_lines():
                    if line == "data: [DONE]":
                        return
                    if line.startswith("data: "):
                        yield _chunk(line.removeprefix("data: "))
        except httpx.HTTPError as error:
            raise _lost(error) from error

    def abort(self, rid: str) -> None:
        self._ask("POST", "/abort_request", {"rid": rid})

    def flush_cache(self) -> None:
        self._ask("POST", "/flush_cache")

    def get_server_info(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self._ask("GET", "/get_server_info"))

    def get_model_info(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self._ask("GET", "/get_model_info"))

    def close(self) -> None:
        """Close the connections; calls in flight fail."""
        self._client.close()

    def _ask(self, method: str, path: str, body: Body | None = None) -> Any:
        import httpx

        try:
            response = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise _lost(error) from error
        if response.is_error:
            raise _refusal(response)
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError:
            return response.text


def _chunk(data: str) -> Reply:
    chunk = json.loads(data)
    if "error" in chunk:
        raise _envelope(500, chunk["error"])
    return cast("Reply", chunk)


def _refusal(response: httpx.Response) -> BackendError:
    try:
        return _envelope(response.status_code, response.json()["error"])
    except (ValueError, KeyError, TypeError):
        where = response.request.url
        return BackendError(response.status_code, "http_error", f"{where}: {response.text[:500]}")


def _envelope(status: int, error: dict[str, Any]) -> BackendError:
    code = error.get("code") or error.get("type") or "error"
    return BackendError(status, str(code), str(error.get("message")), error.get("param"))


def _lost(error: httpx.HTTPError) -> BackendError:
    try:
        where = f" ({error.request.url})"
    except RuntimeError:  # httpx raised it before there was a request
        where = ""
    return BackendError(0, "connection_error", f"{type(error).__name__}: {error}{where}")
