"""The HTTP application.

Owns: which routes, middlewares and error handlers make up the server. Must not know: what any of
them does, processes, sockets.
"""

from __future__ import annotations

from fastapi import FastAPI

from radixserve.api import faults
from radixserve.api.auth import BearerKey
from radixserve.api.front import Front
from radixserve.api.native import routes as native
from radixserve.api.openai import routes as openai
from radixserve.config.schema import Config
from radixserve.native.calls import Door
from radixserve.native.service import NativeService


def create_app(gateway: Door, config: Config) -> FastAPI:
    """All routes over `gateway`. There is no documentation route; every path but /health needs
    config.http.api_key where that is set."""
    app = FastAPI(
        title="radixserve",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    front = Front(gateway, config, NativeService(gateway))
    app.include_router(openai.routes(front))
    app.include_router(native.routes(front))
    faults.install(app)
    if config.http.api_key:
        app.add_middleware(BearerKey, key=config.http.api_key)
    return app
