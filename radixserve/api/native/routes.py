"""The routes of the native dialect, and those that ask after the server.

Owns: /generate and its company over HTTP. Must not know: what a native body means.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from radixserve.api.body import read_json
from radixserve.api.caller import caller
from radixserve.api.faults import Forbidden, answer
from radixserve.api.front import Front
from radixserve.api.native.probe import Probe
from radixserve.api.sse import event_stream, unless_gone
from radixserve.errors import InvalidRequest
from radixserve.native.about import model_info as model_info_of
from radixserve.native.about import server_info as server_info_of
from radixserve.native.fields import Name, read

MAX_ABORT = 64 * 1024


class AbortBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """rid: of the call to end. abort_all: end every call. One of the two."""

    rid: Name = ""
    abort_all: bool = False


def routes(front: Front) -> APIRouter:
    """POST /generate, health by generating, information, cache and abort."""
    router = APIRouter()
    _add_calls(router, front)
    _add_health(router, front)
    _add_information(router, front)
    return router


def _add_calls(router: APIRouter, front: Front) -> None:
    limit = front.config.http.max_body

    async def generate(request: Request) -> Response:
        body = await read_json(request, limit)
        if isinstance(body, dict) and body.get("stream") is True:
            return await event_stream(request, front.service.stream(body))
        return answer(await unless_gone(request.receive, front.service.generate(body)))

    async def abort(request: Request) -> Response:
        given = read(AbortBody, await read_json(request, min(limit, MAX_ABORT)))
        if given.abort_all == bool(given.rid):
            raise InvalidRequest("give either rid or abort_all: true", param="rid")
        if given.abort_all:
            if not caller.get().is_admin:
                raise Forbidden("abort_all needs an admin's key (--admin-key)")
            front.calls.abort_all()
        else:
            front.calls.abort(given.rid)
        return answer({"success": True})

    router.add_api_route("/generate", generate, methods=["POST", "PUT"])
    router.add_api_route("/abort_request", abort, methods=["POST"])


def _add_health(router: APIRouter, front: Front) -> None:
    probe = Probe(front)

    async def health_generate(request: Request) -> Response:
        await unless_gone(request.receive, probe.run())
        return answer({"status": "ok"})

    router.add_api_route("/health_generate", health_generate, methods=["GET", "HEAD"])


def _add_information(router: APIRouter, front: Front) -> None:
    async def flush() -> Response:
        return answer({"success": True, "flushed_tokens": await front.gateway.flush()})

    async def model_info() -> Response:
        return answer(model_info_of(front.gateway, front.config))

    async def server_info() -> Response:
        return answer(await server_info_of(front.gateway, front.config))

    router.add_api_route("/flush_cache", flush, methods=["GET", "POST"])
    for path in ("/model_info", "/get_model_info"):
        router.add_api_route(path, model_info, methods=["GET"])
    for path in ("/server_info", "/get_server_info"):
        router.add_api_route(path, server_info, methods=["GET"])
