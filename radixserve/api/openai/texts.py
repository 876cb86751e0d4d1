"""The routes that turn text into ids and back.

Owns: /tokenize and /detokenize over HTTP, with and without /v1. Must not know: what the fields
mean.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from radixserve.api.body import read_json
from radixserve.api.faults import answer
from radixserve.api.front import Front
from radixserve.api.openai.tokenize import detokenize, tokenize
from radixserve.native.apart import apart


def routes(front: Front) -> APIRouter:
    """POST /tokenize, /detokenize, /v1/tokenize, /v1/detokenize."""
    router = APIRouter()
    gateway, limit = front.gateway, front.config.http.max_body

    async def to_ids(request: Request) -> Response:
        body = await read_json(request, limit)
        return answer(await apart(body, tokenize, body, gateway))

    async def to_text(request: Request) -> Response:
        body = await read_json(request, limit)
        return answer(await apart(body, detokenize, body, gateway))

    for prefix in ("", "/v1"):
        router.add_api_route(f"{prefix}/tokenize", to_ids, methods=["POST"])
        router.add_api_route(f"{prefix}/detokenize", to_text, methods=["POST"])
    return router
