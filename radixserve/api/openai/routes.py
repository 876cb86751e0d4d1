"""The routes of the OpenAI dialect.

Owns: reading, running and answering a call over HTTP. Must not know: what the fields mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import APIRouter, Request, Response

from radixserve.api.body import read_json
from radixserve.api.faults import NotFound, answer
from radixserve.api.front import Front
from radixserve.api.openai.chat import chat_job
from radixserve.api.openai.common import Event, Job
from radixserve.api.openai.completions import completion_job
from radixserve.api.openai.schema import Sampled, read_chat, read_completion
from radixserve.api.sse import event_stream, unless_gone
from radixserve.native.apart import apart
from radixserve.native.calls import Door

Given = TypeVar("Given", bound=Sampled)


def routes(front: Front) -> APIRouter:
    """/v1/chat/completions, /v1/completions, /v1/models."""
    router = APIRouter()
    http = front.config.http

    async def chat(request: Request) -> Response:
        body = await read_json(request, http.max_body)
        prepared = await apart(body, _job, body, read_chat, chat_job, front)
        return await _run(request, front, *prepared)

    async def completions(request: Request) -> Response:
        body = await read_json(request, http.max_body)
        prepared = await apart(body, _job, body, read_completion, completion_job, front)
        return await _run(request, front, *prepared)

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


def _job(
    body: object,
    read: Callable[[object], Given],
    job: Callable[[Given, Door, int], Job],
    front: Front,
) -> tuple[Job, bool]:
    """(the call, whether it is streamed). Takes time in the length of the body."""
    given = read(body)
    _check_model(given, front)
    return job(given, front.gateway, front.config.http.default_max_tokens), given.stream


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
