"""The routes of the OpenAI dialect.

Owns: reading, running and answering a call over HTTP. Must not know: what the fields mean.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from radixserve.api.body import read_json
from radixserve.api.faults import answer
from radixserve.api.front import Front
from radixserve.api.openai.common import Job
from radixserve.api.openai.jobs import CHAT, COMPLETIONS, job_of
from radixserve.api.openai.models import model_fields, no_model
from radixserve.api.sse import event_stream, unless_gone
from radixserve.native.apart import apart


def routes(front: Front) -> APIRouter:
    """/v1/chat/completions, /v1/completions, /v1/models."""
    router = APIRouter()
    gateway, http = front.gateway, front.config.http

    async def chat(request: Request) -> Response:
        body = await read_json(request, http.max_body)
        prepared = await apart(body, job_of, CHAT, body, gateway, http.default_max_tokens)
        return await _run(request, front, *prepared)

    async def completions(request: Request) -> Response:
        body = await read_json(request, http.max_body)
        prepared = await apart(body, job_of, COMPLETIONS, body, gateway, http.default_max_tokens)
        return await _run(request, front, *prepared)

    async def models() -> Response:
        return answer({"object": "list", "data": [model_fields(gateway, front.created)]})

    async def model(name: str) -> Response:
        if name != gateway.model_name:
            raise no_model(name, gateway)
        return answer(model_fields(gateway, front.created))

    router.add_api_route(CHAT, chat, methods=["POST"])
    router.add_api_route(COMPLETIONS, completions, methods=["POST"])
    router.add_api_route("/v1/models", models, methods=["GET"])
    router.add_api_route("/v1/models/{name:path}", model, methods=["GET"])
    return router


async def _run(request: Request, front: Front, job: Job, stream: bool) -> Response:
    if stream:
        return await event_stream(request, job.events(front.calls))
    return answer(await unless_gone(request.receive, job.whole(front.calls)))
