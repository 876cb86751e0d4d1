"""The routes that take text and generate none.

Owns: /tokenize and /detokenize, with and without /v1, and /v1/embeddings over HTTP. Must not know:
what the fields mean.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from radixserve.api.body import read_json
from radixserve.api.faults import answer
from radixserve.api.front import Front
from radixserve.api.openai.embeddings import Embedding
from radixserve.api.openai.tokenize import detokenize, tokenize
from radixserve.api.sse import unless_gone
from radixserve.native.apart import apart


def routes(front: Front) -> APIRouter:
    """POST /tokenize, /detokenize, /v1/tokenize, /v1/detokenize, /v1/embeddings."""
    router = APIRouter()
    gateway, limit = front.gateway, front.config.http.max_body

    async def to_ids(request: Request) -> Response:
        body = await read_json(request, limit)
        return answer(await apart(body, tokenize, body, gateway))

    async def to_text(request: Request) -> Response:
        body = await read_json(request, limit)
        return answer(await apart(body, detokenize, body, gateway))

    async def embeddings(request: Request) -> Response:
        body = await read_json(request, limit)
        prepared = await apart(body, Embedding, body, gateway)
        return answer(await unless_gone(request.receive, prepared.answer(front.calls)))

    router.add_api_route("/v1/embeddings", embeddings, methods=["POST"])
    for prefix in ("", "/v1"):
        router.add_api_route(f"{prefix}/tokenize", to_ids, methods=["POST"])
        router.add_api_route(f"{prefix}/detokenize", to_text, methods=["POST"])
    return router
