"""Work that takes long, off the loop.

Owns: which bodies are large, and the few threads that large ones wait for. Must not know: what a
body means.

Large bodies have threads of their own: they bound the memory that tokenising takes, and the small
bodies never wait behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

LARGE = 256 * 1024  # bytes or characters
MANY = 10_000  # values
_THREADS = 2
_NUMBERS = {int}

_for_large = ThreadPoolExecutor(_THREADS, thread_name_prefix="large-body")


async def apart(body: object, work: Callable[..., T], *given: Any) -> T:
    """work(*given) in a thread; no more than two at once where `body`, a JSON value or its bytes,
    is large. Cancelling leaves the thread at work."""
    pool = _for_large if is_large(body) else None
    return await asyncio.get_running_loop().run_in_executor(pool, partial(work, *given))


def is_large(body: object) -> bool:
    """Whether all text in `body` together, or the number of values, is past the bound. Looks at
    no more than the bound."""
    left: list[Any] = [body]
    size, count = 0, 1
    while left:
        value = left.pop()
        if isinstance(value, str | bytes):
            size += len(value)
        elif isinstance(value, dict | list | tuple):
            count += len(value)
            if count > MANY:
                return True
            inside = value if isinstance(value, list | tuple) else (*value, *value.values())
            left += inside if set(map(type, inside)) != _NUMBERS else ()
        if size > LARGE:
            return True
    return False
