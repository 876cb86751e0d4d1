"""What a backend is to a program.

Bodies and replies are plain JSON values in the shape of POST /generate. Must not know: any backend.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any, Protocol, runtime_checkable

Body = dict[str, Any]
Reply = dict[str, Any]


@runtime_checkable
class Backend(Protocol):
    """Methods may be called from many threads at once. Any exception is a failed call."""

    def generate(self, body: Body) -> Reply | list[Reply]:
        """One output, or a list of n where sampling_params.n > 1."""
        ...

    def stream(self, body: Body) -> Iterator[Reply]:
        """Replies with cumulative text; the last has a finish_reason. Closing it aborts."""
        ...

    def choose(self, body: Body) -> Reply:
        """Log-probabilities of the choices that end body["input"]."""
        ...

    def abort(self, rid: str) -> None:
        """End a call in flight; generate() and choose() of it then return or raise soon."""
        ...

    def flush_cache(self) -> None: ...

    def get_server_info(self) -> dict[str, Any]: ...


@runtime_checkable
class AsyncBackend(Protocol):
    """The same calls for event loops. Cancelling one, or closing a stream, ends it at once.

    A backend may have these beside the blocking ones; without them a loop calls it in threads.
    """

    async def agenerate(self, body: Body) -> Reply | list[Reply]: ...

    def astream(self, body: Body) -> AsyncGenerator[Reply, None]: ...

    async def achoose(self, body: Body) -> Reply: ...
