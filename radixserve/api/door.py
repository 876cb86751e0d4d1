"""The door between dialects and gateway: what holds for each request, whoever reads it.

Owns: the caller's namespace, priority and tokens a minute, the longest a request may take, whose
request a rid is. Must not know: any dialect, HTTP, keys.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace

from radixserve.api.caller import caller
from radixserve.api.faults import RateLimited
from radixserve.api.tenants import Tenant
from radixserve.chunks import Chunk, Request, of_key
from radixserve.config.schema import HttpConfig
from radixserve.errors import EngineDead, InvalidRequest
from radixserve.native.calls import Door
from radixserve.text.renderer import Renderer
from radixserve.wire.cache import CacheStats, TreeNode
from radixserve.wire.messages import Gauges, Ready


class OperatedDoor:
    """A Door for callers that an operator has set limits to. Opens when there is a gateway."""

    def __init__(self, gateway: Door | None, http: HttpConfig) -> None:
        self._gateway = gateway
        self._timeout = http.request_timeout or None
        self._owners: dict[str, Tenant | None] = {}

    def open(self, gateway: Door) -> None:
        """From now on the model is there."""
        self._gateway = gateway

    @property
    def gateway(self) -> Door:
        if self._gateway is None:
            raise EngineDead("the model is loading")
        return self._gateway

    @property
    def alive(self) -> bool:
        return self._gateway is not None and self._gateway.alive

    @property
    def renderer(self) -> Renderer:
        return self.gateway.renderer

    @property
    def info(self) -> Ready:
        return self.gateway.info

    @property
    def model_name(self) -> str:
        return self.gateway.model_name

    async def submit(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Gateway.submit. Raises, besides, InvalidRequest and RateLimited for the caller's
        limits."""
        who = caller.get()
        tenant = who.tenant
        request = replace(
            request,
            origin=who.origin,
            timeout_s=_shortest(request.timeout_s, self._timeout),
            namespace=of_key(tenant.namespace if tenant else "", request.namespace),
        )
        cost = _prompt_tokens(request)
        if tenant is not None:
            if not request.belongs:
                _check(tenant, request)
            tenant.tokens.spend(cost)
        self._owners[request.rid] = tenant
        is_accepted = False
        try:
            async with contextlib.aclosing(self.gateway.submit(request)) as chunks:
                async for chunk in chunks:
                    is_accepted = True
                    if tenant is not None:
                        tenant.tokens.spend(len(chunk.ids))
                    yield chunk
        finally:
            del self._owners[request.rid]
            if tenant is not None and not is_accepted:
                tenant.tokens.spend(-cost)  # nothing was computed for it

    def abort(self, rid: str) -> None:
        """Gateway.abort, for the caller's own requests; an admin ends anyone's."""
        who = caller.get()
        if rid in self._owners and (who.is_admin or self._owners[rid] is who.tenant):
            self.gateway.abort(rid)

    def end_program(self, program: str, namespace: str) -> None:
        """Gateway.end_program, for the caller's own."""
        if self.alive:
            tenant = caller.get().tenant
            self.gateway.end_program(program, of_key(tenant.namespace if tenant else "", namespace))

    async def flush(self) -> int:
        return await self.gateway.flush()

    async def gauges(self) -> Gauges:
        return await self.gateway.gauges()

    async def cache_stats(self) -> CacheStats:
        return await self.gateway.cache_stats()

    async def cache_tree(
        self, namespace: str | None, depth: int, limit: int
    ) -> tuple[CacheStats, list[TreeNode]]:
        return await self.gateway.cache_tree(namespace, depth, limit)


def _shortest(asked: float | None, most: float | None) -> float | None:
    return min((seconds for seconds in (asked, most) if seconds is not None), default=None)


def _prompt_tokens(request: Request) -> int:
    """Those that its caller has not been charged for."""
    known = request.prompt_logprobs_start if request.belongs else 0
    return len(request.prompt) // 4 - known


def _check(tenant: Tenant, request: Request) -> None:
    if tenant.max_priority is not None and request.priority > tenant.max_priority:
        raise InvalidRequest(
            f"priority {request.priority}: this key may ask for {tenant.max_priority} at most",
            param="priority",
            code="priority_too_high",
        )
    if tenant.admin:
        return
    tokens = len(request.prompt) // 4
    limit = tenant.tokens.per_minute
    if limit and tokens > limit:
        raise InvalidRequest(
            f"the prompt has {tokens} tokens; this key may use {limit} a minute",
            param="prompt",
            code="tokens_per_minute",
        )
    wait = tenant.tokens.wait(max(1, tokens))
    if wait:
        raise RateLimited(
            f"this key may use {limit} tokens a minute",
            code="tokens_per_minute",
            retry_after=wait,
        )
