"""The routes that an operator's machinery asks: is it alive, is it ready, how is it doing.

Owns: /health, /ready, /metrics. Must not know: how the answers come about.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from radixserve.api.faults import Unavailable, answer
from radixserve.api.front import Front
from radixserve.errors import EngineDead, Stopping


def routes(front: Front) -> APIRouter:
    """HEAD does as GET. /health: 200 while the engine is there, answers and gets on with its
    steps, also while it computes a long one. /ready: 200 while calls are taken. /metrics: for
    Prometheus."""
    router = APIRouter()

    async def health() -> Response:
        if front.life.phase == "loading":
            raise Unavailable("the model is loading", code="loading")
        if not front.gateway.alive:
            raise EngineDead("it ended, fell silent or hangs in a step")
        return answer({"status": "ok"})

    async def ready() -> Response:
        if front.life.phase == "draining":
            raise Stopping
        return await health()

    async def metrics(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        text, content_type = await asyncio.to_thread(front.metrics.scrape, accept)
        return Response(text, headers={"Content-Type": content_type})

    router.add_api_route("/health", health, methods=["GET", "HEAD"])
    router.add_api_route("/ready", ready, methods=["GET", "HEAD"])
    router.add_api_route("/metrics", metrics, methods=["GET", "HEAD"])
    return router
