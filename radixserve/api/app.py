"""The HTTP application.

Owns: which routes, middlewares and error handlers make up the server. Must not know: what any of
them does, processes, sockets.
"""

from __future__ import annotations

from fastapi import FastAPI

from radixserve.api import cache, faults, openapi, operator, programs
from radixserve.api.access import Access
from radixserve.api.anthropic import routes as anthropic
from radixserve.api.anthropic.envelope import AnthropicCalls
from radixserve.api.body import large_bodies
from radixserve.api.cors import Cors
from radixserve.api.door import OperatedDoor
from radixserve.api.entrance import Entrance
from radixserve.api.front import Front
from radixserve.api.life import Life
from radixserve.api.native import routes as native
from radixserve.api.openai import routes as openai
from radixserve.api.openai import texts
from radixserve.api.patience import Patience
from radixserve.api.responses import routes as responses
from radixserve.api.tenants import load_tenants
from radixserve.config.schema import Config
from radixserve.metrics.prometheus import Metrics
from radixserve.native.calls import Door
from radixserve.native.service import NativeService


def create_app(
    gateway: Door, config: Config, *, life: Life | None = None, metrics: Metrics | None = None
) -> FastAPI:
    """All routes over `gateway`, which is an OperatedDoor or gets one in front of it.

    What needs which key stands in entrance.py. Raises ConfigError for keys that cannot be read.
    """
    app = FastAPI(
        title="radixserve",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    http = config.http
    life, metrics = life or Life(), metrics or Metrics()
    door = gateway if isinstance(gateway, OperatedDoor) else OperatedDoor(gateway, http)
    app.state.large_bodies = large_bodies()
    front = Front(door, config, NativeService(door), life, metrics)
    for part in (openai, responses, texts, anthropic, native, programs, operator, cache):
        app.include_router(part.routes(front))
    app.include_router(openapi.routes())
    app.add_middleware(
        Entrance,
        life=life,
        tenants=load_tenants(http),
        max_streams=http.max_streams,
        public_metrics=http.public_metrics,
    )
    app.add_middleware(
        Patience,
        body=http.body_timeout,
        reader=http.reader_timeout,
        on_drop=metrics.dropped_slow_reader,
    )
    faults.install(app)
    app.add_middleware(AnthropicCalls)
    if http.cors_origin:
        app.add_middleware(Cors, origins=http.cors_origin)
    app.add_middleware(Access, counter=metrics, logs=http.access_log)
    return app
