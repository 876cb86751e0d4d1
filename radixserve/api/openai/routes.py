"""The routes of the OpenAI dialect.

Owns: reading, running and answering a call over HTTP. Must not know: what the fields mean.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from radixserve.api.body import read_json
from radixserve.api.faults import NotFound, answer
from radixserve.api.front import Front
from radixserve.api.openai.chat import chat_job
from radixserve.api.openai.common import Event, Job
from radixserve.api.openai.completions import completion_job
from radixserve.api.openai.schema import Sampled, read_chat, read_completion
from radixserve.api.sse import event_stream, unless_gone


def routes(front: Front) -> APIRouter:
    """/v1/chat/completions, /v1/completions, /v1/models."""
    router = APIRouter()
    http = front.config.http

    async def chat(request: Request) -> Response:
        given = read_chat(await read_json(request, http.max_body))
        _check_model(given, front)
        job = await asyncio.to_thread(chat_job, given, front.gateway, http.default_max_tokens)
        return await _run(request, front, job, given.stream)

    async def completions(request: Request) -> Response:
        given = read_completion(await read_json(request, http.max_body))
        _check_model(given, front)
        job = await asyncio.to_thread(completion_job, given, front.gateway, http.default_max_tokens)
        return await _run(request, front, job, given.stream)

    async def models() -> Response:
        return answer({"object": "list", "data": [_model(front)]})

    async def model(name: str) -> Response:
        if name != front.gateway.model_name:
            raise _no_model(name, front)
        return answer(_model(front))

    router.add_api_route("/v1/chat/completions", chat, methods=["POST"])
    router.add_api_route("/v1/completions", completions, methods=["POST"])
    router.add_api_route("/v1/models", models, methods=["GET"])
    router.add_api_route("/v1/models/{name:path}", model, methods=["GET"])
    return router


async def _run(request: Request, front: Front, job: Job, stream: bool) -> Response:
    if stream:
        return await event_stream(request, job.events(front.calls))
    return answer(await unless_gone(request.receive, job.whole(front.calls)))


def _check_model(given: Sampled, front: Front) -> None:
    """A body without a model means the one that is served."""
    if given.model not in ("", front.gateway.model_name):
        raise _no_model(given.model, front)


def _no_model(name: str, front: Front) -> NotFound:
    return NotFound(
        f"the model {name!a} does not exist; this server has {front.gateway.model_name!r}",
        param="model",
        code="model_not_found",
    )


def _model(front: Front) -> Event:
    return {
        "id": front.gateway.model_name,
        "object": "model",
        "created": front.created,
        "owned_by": "radixserve",
        "max_model_len": front.gateway.info.context_len,
    }
