"""The backend of runs that name none: the one thing in lang that outlives a run."""

from __future__ import annotations

from typing import Any, cast

from radixserve.lang.backends.base import Backend
from radixserve.lang.backends.engine import (
    AsyncEngineBackend,
    EngineBackend,
    EngineLink,
    ProgramEngineBackend,
)

_default: Backend | None = None


def set_default_backend(backend: Backend | EngineLink | None) -> None:
    """Runs without backend= go to `backend`: a Backend, or an engine (an object with submit)."""
    global _default  # noqa: PLW0603
    _default = None if backend is None else _as_backend(backend)


def resolve_backend(backend: Backend | EngineLink | None) -> Backend:
    """The backend to use; raises ValueError when none was given and none is the default."""
    if backend is not None:
        return _as_backend(backend)
    if _default is None:
        raise ValueError("no backend: pass backend= or call set_default_backend() first")
    return _default


def flush_cache(backend: Backend | EngineLink | None = None) -> None:
    """Drop everything that the backend's prefix cache can drop."""
    resolve_backend(backend).flush_cache()


def get_server_info(backend: Backend | EngineLink | None = None) -> dict[str, Any]:
    """What the backend tells about itself."""
    return resolve_backend(backend).get_server_info()


def _as_backend(backend: object) -> Backend:
    if hasattr(backend, "submit"):
        if hasattr(backend, "async_stream_program"):
            return ProgramEngineBackend(cast("EngineLink", backend))
        if hasattr(backend, "async_generate") and hasattr(backend, "async_stream"):
            return AsyncEngineBackend(cast("EngineLink", backend))
        return EngineBackend(cast("EngineLink", backend))
    if isinstance(backend, Backend):
        return backend
    raise TypeError(f"not a backend: {backend!r}")
