"""The routes of the Anthropic dialect.

Owns: reading, running and answering a call over HTTP. Must not know: what the fields mean.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from radixserve.api.anthropic.ask import count_tokens, message_asked
from radixserve.api.anthropic.envelope import MESSAGES, error_event
from radixserve.api.anthropic.message import Message
from radixserve.api.body import read_json
from radixserve.api.faults import answer
from radixserve.api.front import Front
from radixserve.api.sse import Style, event_stream, named_frame, unless_gone
from radixserve.native.apart import apart
from radixserve.native.calls import room_of

_STYLE = Style(frame=named_frame, end=b"", failed=error_event)


def routes(front: Front) -> APIRouter:
    """POST /v1/messages, /v1/messages/count_tokens."""
    router = APIRouter()
    gateway, limit = front.gateway, front.config.http.max_body

    async def messages(request: Request) -> Response:
        body = await read_json(request, limit)
        wanted, asked = await apart(body, message_asked, body, gateway)
        message = Message(
            asked=asked,
            model=gateway.model_name,
            room=room_of(gateway),
            shows_thinking=wanted.shows_thinking,
        )
        if wanted.is_streamed:
            return await event_stream(request, message.events(front.calls), _STYLE)
        return answer(await unless_gone(request.receive, message.whole(front.calls)))

    async def count(request: Request) -> Response:
        body = await read_json(request, limit)
        return answer({"input_tokens": await apart(body, count_tokens, body, gateway)})

    router.add_api_route(MESSAGES, messages, methods=["POST"])
    router.add_api_route(f"{MESSAGES}/count_tokens", count, methods=["POST"])
    return router
