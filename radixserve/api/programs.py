"""The route of compiled programs.

Owns: POST /v1/programs: reading, running and answering one, what it costs its key, its errors as
errors of a request. Must not know: graphs, how a program is run.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Request, Response

from radixserve.api.body import read_json
from radixserve.api.caller import caller
from radixserve.api.faults import answer, envelope
from radixserve.api.front import Front
from radixserve.api.sse import event_stream, unless_gone
from radixserve.config.schema import HttpConfig
from radixserve.errors import (
    Cancelled,
    EngineDead,
    InvalidRequest,
    RequestError,
    Stopping,
    TimedOut,
)
from radixserve.lang.compiled.feed import DEADLINE_CODE
from radixserve.lang.compiled.reading import GraphLimits
from radixserve.lang.errors import (
    BackendError,
    DeadlineExceeded,
    GraphError,
    ProgramCancelled,
    ProgramError,
    TypedOutputError,
)
from radixserve.native.apart import apart
from radixserve.programs.request import (
    CODE,
    Job,
    ProgramLimits,
    as_invalid,
    is_kept,
    read_job,
)
from radixserve.programs.service import ProgramService

PATH = "/v1/programs"


def routes(front: Front) -> APIRouter:
    """POST /v1/programs."""
    router = APIRouter()
    http, service = front.config.http, ProgramService(front.service, may_return=True)
    limits = limits_of(http)

    async def programs(request: Request) -> Response:
        body = await read_json(request, http.max_body)
        if is_kept(body, limits):  # a thread would take longer
            job = read_job(body, limits)
        else:
            job = await apart(body, read_job, body, limits)
        _pay(job)
        if job.streams:
            return await event_stream(request, _events(service, job))
        return answer(await unless_gone(request.receive, _whole(service, job)))

    router.add_api_route(PATH, programs, methods=["POST"])
    return router


def limits_of(http: HttpConfig) -> ProgramLimits:
    """What programs of others may come to."""
    return ProgramLimits(
        graph=GraphLimits(
            steps=http.program_steps, calls=http.program_calls, branches=http.program_branches
        ),
        text=http.program_text,
        seconds=http.program_timeout or None,
    )


def _pay(job: Job) -> None:
    """A key's requests a minute are calls of the model; the first was paid at the entrance."""
    tenant = caller.get().tenant
    if tenant is not None and not tenant.admin:
        tenant.requests.spend(max(0, len(job.graph.calls) - 1))


async def _whole(service: ProgramService, job: Job) -> dict[str, Any]:
    with _as_requests():
        return await service.run(job)


async def _events(service: ProgramService, job: Job) -> AsyncGenerator[dict[str, Any], None]:
    with _as_requests():
        async with contextlib.aclosing(service.stream(job)) as events:
            async for event in events:
                yield _written(event)


def _written(event: dict[str, Any]) -> dict[str, Any]:
    """An event whose error is an envelope's."""
    error = event.get("error")
    if not isinstance(error, BaseException):
        return event
    status, body = envelope(request_error_of(error) or error)
    return {**event, "status": status, **body}


@contextlib.contextmanager
def _as_requests() -> Iterator[None]:
    """Errors of the language leave as errors of a request."""
    try:
        yield
    except Exception as error:
        known = request_error_of(error)
        if known is not None:
            raise known from error
        raise


def request_error_of(error: BaseException) -> RequestError | EngineDead | None:
    """What the client is told of an error of a program; None for one that nobody expected."""
    match error:
        case RequestError() | EngineDead():
            return error
        case GraphError():
            return as_invalid(error)
        case DeadlineExceeded():
            return TimedOut(str(error), code=DEADLINE_CODE)
        case ProgramCancelled():
            return Cancelled(str(error))
        case ProgramError() | TypedOutputError():
            return InvalidRequest(str(error), param="program", code=CODE)
        case BackendError(status=499):
            return Cancelled(error.message)
        case BackendError(code=Stopping.code):
            return Stopping()
        case _:
            return None
