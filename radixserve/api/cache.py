"""The routes that show the cache; for admins, since they show what others asked.

Owns: GET /v1/cache/stats and /v1/cache/tree. Must not know: the tree.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from radixserve.api.faults import answer
from radixserve.api.front import Front
from radixserve.errors import InvalidRequest
from radixserve.native.explained import tree_fields

MAX_DEPTH = 64
MAX_NODES = 1000
DEFAULT_DEPTH = 4
DEFAULT_NODES = 200


def routes(front: Front) -> APIRouter:
    """GET /v1/cache/stats: counts in tokens, see CacheStats.

    GET /v1/cache/tree?depth=&limit=&namespace=: the radix tree from above, the latest used first;
    `depth` edges down, `limit` nodes in all, of one namespace or of all.
    """
    router = APIRouter()
    gateway = front.gateway

    async def stats(request: Request) -> Response:
        _known(request, frozenset())
        return answer(msgspec.to_builtins(await gateway.cache_stats()))

    async def tree(request: Request) -> Response:
        _known(request, frozenset({"depth", "limit", "namespace"}))
        depth = _number(request, "depth", DEFAULT_DEPTH, 0, MAX_DEPTH)
        limit = _number(request, "limit", DEFAULT_NODES, 1, MAX_NODES)
        found, rows = await gateway.cache_tree(request.query_params.get("namespace"), depth, limit)
        shown = tree_fields(rows, gateway.renderer.tokenizer)
        return answer(
            {"namespaces": shown, "left_out": _left_out(request, found.namespaces, shown)}
        )

    router.add_api_route("/v1/cache/stats", stats, methods=["GET"])
    router.add_api_route("/v1/cache/tree", tree, methods=["GET"])
    return router


def _left_out(request: Request, namespaces: int, shown: list[dict[str, object]]) -> int:
    """Namespaces that the listing had no room for."""
    return 0 if "namespace" in request.query_params else namespaces - len(shown)


def _known(request: Request, names: frozenset[str]) -> None:
    for name in request.query_params:
        if name not in names:
            raise InvalidRequest(
                f"unknown parameter {name!a}", param=name, code="unknown_parameter"
            )


def _number(request: Request, name: str, default: int, low: int, high: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 10 and low <= int(given) <= high):
        raise InvalidRequest(f"{name} is a whole number from {low} to {high}", param=name)
    return int(given)
