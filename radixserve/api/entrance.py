"""Whether a call may come in: the phase of the server, its key, how much it may use.

Owns: what needs which key, the limits that hold before a body is read. Must not know: what a route
does. Every path but exactly those of PUBLIC needs a key where there are keys, whatever the method,
so a new route is closed until someone opens it here; those of ADMIN need an admin's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from starlette.types import ASGIApp, Receive, Scope, Send

from radixserve.api.caller import Caller, acting_for, caller
from radixserve.api.faults import Forbidden, RateLimited, Unauthorized, Unavailable, fault
from radixserve.api.life import Life
from radixserve.api.tenants import Tenant, Tenants
from radixserve.errors import RequestError, Stopping

HEALTH = frozenset({"/health", "/ready"})
METRICS = "/metrics"
ADMIN = frozenset({"/flush_cache"})
ADMIN_PREFIX = "/v1/cache/"
KEY_NAME = "radixserve.key"  # in a call's scope, for the log
# Ends calls, so it must get through where too many are open.
UNLIMITED = frozenset({"/abort_request"})


class Entrance:
    """max_streams: calls open at once, 0 for any. public_metrics: /metrics needs no key."""

    def __init__(
        self,
        app: ASGIApp,
        life: Life,
        tenants: Tenants,
        *,
        max_streams: int,
        public_metrics: bool,
    ) -> None:
        self._app = app
        self._life = life
        self._tenants = tenants
        self._max_streams = max_streams
        self._public = HEALTH | {METRICS} if public_metrics else HEALTH

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._public:
            await self._app(scope, receive, send)
            return
        try:
            tenant = self._tenant(scope)
            name = tenant.name if tenant is not None else ""
            scope[KEY_NAME] = name
            who = Caller(tenant, replace(caller.get().origin, tenant=name))
            with self._inside(scope["path"], tenant), acting_for(who):
                await self._app(scope, receive, send)
        except Refused as refused:
            await fault(refused.error, scope)(scope, receive, send)

    def _tenant(self, scope: Scope) -> Tenant | None:
        """None where there are no keys. Raises Refused."""
        if not len(self._tenants):
            return None
        tenant = self._tenants.find(key_of(scope))
        if tenant is None:
            raise Refused(
                Unauthorized(
                    "this server needs an API key: Authorization: Bearer <key>, or x-api-key: <key>"
                )
            )
        path = scope["path"]
        if not tenant.admin and (path in ADMIN or path.startswith(ADMIN_PREFIX)):
            raise Refused(Forbidden(f"{path} needs an admin's key (--admin-key)"))
        return tenant

    @contextmanager
    def _inside(self, path: str, tenant: Tenant | None) -> Iterator[None]:
        """While the call is open. Raises Refused."""
        self._check_phase(path)
        if path not in UNLIMITED:
            self._check_limits(tenant)
        self._life.enter()
        if tenant is not None:
            tenant.open_calls += 1
        try:
            yield
        finally:
            self._life.leave()
            if tenant is not None:
                tenant.open_calls -= 1

    def _check_phase(self, path: str) -> None:
        match self._life.phase:
            case "loading":
                raise Refused(Unavailable("the model is loading", code="loading"))
            case "draining" if path not in UNLIMITED:
                raise Refused(Stopping())

    def _check_limits(self, tenant: Tenant | None) -> None:
        if tenant is not None and tenant.admin:
            return
        if 0 < self._max_streams <= self._life.open_calls:
            raise Refused(RateLimited(f"{self._life.open_calls} calls are open", code="too_busy"))
        if tenant is None:
            return
        if 0 < tenant.max_open_calls <= tenant.open_calls:
            raise Refused(
                RateLimited(
                    f"this key may have {tenant.max_open_calls} calls open at once",
                    code="too_many_concurrent",
                )
            )
        wait = tenant.requests.wait(1)
        if wait:
            raise Refused(
                RateLimited(
                    f"this key may make {tenant.requests.per_minute} requests a minute",
                    code="requests_per_minute",
                    retry_after=wait,
                )
            )
        tenant.requests.spend(1)


def key_of(scope: Scope) -> bytes:
    """The key that a call brings, b"" for none: x-api-key counts where there is no
    authorization, and neither where it is given twice."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if given:
        scheme, _, key = given[0].partition(b" ")
        return key if len(given) == 1 and scheme.lower() == b"bearer" else b""
    given = [value for name, value in scope["headers"] if name == b"x-api-key"]
    return given[0] if len(given) == 1 else b""


class Refused(Exception):
    """The call does not come in."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(str(error))
        self.error = error
