"""Pages of other origins that may call the server.

Owns: preflights, which carry no key, and the headers of every answer, errors too. Must not know:
routes, keys. It stands outside of all that may refuse a call.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixserve.api.faults import Forbidden, fault

METHODS = "GET, POST, PUT, DELETE, OPTIONS"
EXPOSED = "X-Request-Id, Retry-After"
MAX_AGE = "600"  # seconds that a browser may keep the answer to a preflight


class Cors:
    """origins: exact ones, as browsers send them, or *. Keys are headers, so no credentials."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin = asked.get("origin")
        if origin is None:
            await self._app(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._mark(MutableHeaders(scope=message), origin)
            await send(message)

        is_preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in asked
        app = self._preflight(origin, asked) if is_preflight else self._app
        await app(scope, receive, marked)

    def _allows(self, origin: str) -> bool:
        return "*" in self._origins or origin in self._origins

    def _mark(self, headers: MutableHeaders, origin: str) -> None:
        headers.add_vary_header("Origin")
        if self._allows(origin):
            headers["Access-Control-Allow-Origin"] = "*" if "*" in self._origins else origin
            headers["Access-Control-Expose-Headers"] = EXPOSED

    def _preflight(self, origin: str, asked: Headers) -> Response:
        if not self._allows(origin):
            return fault(Forbidden(f"the origin {origin!a} may not call (--cors-origin)"))
        allowed = {"Access-Control-Allow-Methods": METHODS, "Access-Control-Max-Age": MAX_AGE}
        wanted = asked.get("access-control-request-headers")
        if wanted:
            allowed["Access-Control-Allow-Headers"] = wanted
        return Response(status_code=204, headers=allowed)
