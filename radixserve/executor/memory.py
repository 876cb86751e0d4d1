"""How many pages the KV pool gets.

Owns: the reading of free memory (the container's limit included). Must not know: the scheduler.
"""

from __future__ import annotations

import pathlib

import psutil

from radixserve.config.schema import CacheConfig
from radixserve.errors import ConfigError
from radixserve.ints import ceil_div


def free_memory() -> int:
    """Bytes this process may still take: the machine's, or its control group's if that is less."""
    free = int(psutil.virtual_memory().available)
    group = pathlib.Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))


def fit_pages(config: CacheConfig, token_bytes: int, most_tokens: int, free: int) -> int:
    """Pages of the pool: kv_tokens if given, else memory_share of free bytes, at most most_tokens.

    token_bytes: K and V of one token in all layers. Raises ConfigError when nothing fits.
    """
    size = config.page_size
    budget = int(free * config.memory_share)
    if config.kv_tokens:
        pages = config.kv_tokens // size
        if pages * size * token_bytes > free:
            raise ConfigError(
                f"kv_tokens ({config.kv_tokens}) needs {pages * size * token_bytes >> 20} MiB, "
                f"{free >> 20} MiB are free; lower kv_tokens"
            )
    else:
        pages = min(budget // (token_bytes * size), ceil_div(most_tokens, size))
    if pages < 1:
        raise ConfigError(
            f"the KV pool has no page: {budget >> 20} MiB for {token_bytes * size} bytes a page; "
            "raise memory_share or kv_tokens"
        )
    return pages
