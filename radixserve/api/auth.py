"""The API key.

Owns: who may use the server. Must not know: what a route does. Every path but exactly /health
needs the key, whatever the method, so a new route is closed until someone opens it here.
"""

from __future__ import annotations

import hmac

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from radixserve.api.faults import fault

PUBLIC = frozenset({"/health"})


class BearerKey:
    """Answers 401 unless the request carries `Authorization: Bearer <key>`."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in PUBLIC:
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) == 1 and self._matches(given[0]):
            await self._app(scope, receive, send)
            return
        error = HTTPException(401, "this server needs an API key: Authorization: Bearer <key>")
        await fault(error, {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _matches(self, header: bytes) -> bool:
        """Bytes against bytes: comparing text that is not ASCII in constant time raises."""
        scheme, _, key = header.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key, self._key)
