"""Putting a constant prefix into a backend's cache.

Owns: the call that computes a prompt and generates nothing. Must not know: caches.
"""

from __future__ import annotations

import secrets

from radixserve.lang.backends.base import Backend
from radixserve.lang.backends.default import resolve_backend
from radixserve.lang.backends.engine import EngineLink
from radixserve.lang.compiled.graph import Graph
from radixserve.lang.errors import Unsupported


def warm_prefix(graph: Graph, backend: Backend | EngineLink | None) -> int:
    """Tokens of the graph's constant prefix, which the backend's cache now holds.

    Raises Unsupported where the backend has no cache of its own.
    """
    found = resolve_backend(backend)
    warm = getattr(found, "warm", None)
    if warm is None:
        raise Unsupported(f"{type(found).__name__} has no prefix cache that a program can warm")
    parts = graph.prefix
    if not parts:
        return 0
    rid = secrets.token_hex(8)
    body = {
        "input": parts,
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "rid": rid,
        "stream": False,
        "program": {"id": rid, "call": "0", "parent": "", "siblings": 1},
    }
    return int(warm(body)["meta_info"]["prompt_tokens"])
