"""The routes of the Responses dialect.

Owns: reading, running, finding and ending a response over HTTP. Must not know: what the fields
mean, where responses are kept.
"""

from __future__ import annotations

import asyncio
from functools import partial

from fastapi import APIRouter, Request, Response

from radixserve.api.body import read_json
from radixserve.api.faults import answer
from radixserve.api.front import Front
from radixserve.api.openai.models import check_model
from radixserve.api.responses.answer import Answer
from radixserve.api.responses.exchange import Exchange, count_of, exchange_of
from radixserve.api.responses.pages import check_retrieval, page_of
from radixserve.api.responses.schema import read_count, read_response
from radixserve.api.responses.service import Responses, owner_now
from radixserve.api.responses.shapes import CANCEL, INPUT_ITEMS, INPUT_TOKENS, ONE, PATH
from radixserve.api.responses.store import Owner, ResponseStore
from radixserve.api.sse import Style, event_stream, named_frame, unless_gone
from radixserve.native.apart import apart


def routes(front: Front) -> APIRouter:
    """POST /v1/responses and its input_tokens; GET and DELETE of one, its input_items, POST its
    cancel."""
    router = APIRouter()
    gateway, http = front.gateway, front.config.http
    responses = Responses(front.calls, ResponseStore(http))

    def prepare(body: object, owner: Owner) -> Exchange:
        given = read_response(body)
        check_model(given.model, gateway)
        return exchange_of(given, gateway, responses.store, owner, http.default_max_tokens)

    async def create(request: Request) -> Response:
        body = await read_json(request, http.max_body)
        read = [body, responses.earlier(body)]
        exchange = await apart(read, prepare, body, owner_now())
        if not exchange.body.stream:
            return answer(await unless_gone(request.receive, responses.whole(exchange)))
        made = Answer(exchange)
        style = Style(frame=named_frame, end=b"", failed=partial(responses.failed, made))
        return await event_stream(request, responses.events(made), style)

    def count(body: object, owner: Owner) -> int:
        given = read_count(body)
        check_model(given.model, gateway)
        return count_of(given, gateway, responses.store, owner)

    async def input_tokens(request: Request) -> Response:
        body = await read_json(request, http.max_body)
        read = [body, responses.earlier(body)]
        tokens = await apart(read, count, body, owner_now())
        return answer({"object": "response.input_tokens", "input_tokens": tokens})

    async def get(name: str, request: Request) -> Response:
        check_retrieval(request.query_params)
        return answer(responses.get(name))

    async def delete(name: str) -> Response:
        return answer(responses.delete(name))

    async def cancel(name: str) -> Response:
        return answer(responses.cancel(name))

    async def input_items(name: str, request: Request) -> Response:
        items = await asyncio.to_thread(responses.input_items, name)
        return answer(page_of(items, request.query_params))

    router.add_api_route(PATH, create, methods=["POST"])
    router.add_api_route(INPUT_TOKENS, input_tokens, methods=["POST"])
    router.add_api_route(ONE, get, methods=["GET"])
    router.add_api_route(ONE, delete, methods=["DELETE"])
    router.add_api_route(CANCEL, cancel, methods=["POST"])
    router.add_api_route(INPUT_ITEMS, input_items, methods=["GET"])
    return router
