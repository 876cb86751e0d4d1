"""How many pages the KV pool gets.

Owns: the reading of free memory (the container's limit included), and the step by which a GPU's
need is measured. Must not know: the scheduler.
"""

from __future__ import annotations

import pathlib

import numpy as np
import psutil

from radixserve.config.schema import CacheConfig, ScheduleConfig
from radixserve.errors import ConfigError
from radixserve.ints import ceil_div
from radixserve.plan import Opened, Output, SlotId, StepPlan
from radixserve.wire.params import SamplingParams


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


def left_for_pool(free: int, peak: int, uses_graphs: bool) -> int:
    """Bytes for the KV pool of a device that has `free` left beside the weights.

    peak: what a full step takes. Graphs keep the memory of a decode step, at most that, once more.
    """
    return max(0, free - peak * (2 if uses_graphs else 1))


def profile_plan(schedule: ScheduleConfig, page_size: int, context_len: int) -> StepPlan:
    """The step that takes most memory: every slot a row, the whole token budget, all rows drawing.

    Page tables are disjoint, from page 0 on. max_running 2, token_budget 5: lengths [3, 2].
    """
    rows = min(schedule.max_running, schedule.token_budget)
    index = np.arange(rows, dtype=np.int32)
    lengths = np.full(rows, schedule.token_budget // rows, np.int32)
    lengths += index < schedule.token_budget % rows
    lengths = np.minimum(lengths, context_len).astype(np.int32)
    ends = np.cumsum(-(-lengths // page_size))
    params = SamplingParams(max_new_tokens=1, temperature=1.0, top_p=0.9, seed=0)
    empty = np.zeros(0, np.int32)
    return StepPlan(
        step=0,
        slots=index,
        positions=np.zeros(rows, np.int32),
        lengths=lengths,
        ids=np.zeros(int(lengths.sum()), np.int32),
        from_last=np.zeros(rows, np.bool_),
        outputs=np.full(rows, Output.SAMPLE, np.int8),
        page_indptr=np.concatenate(([0], ends)).astype(np.int32),
        page_indices=np.arange(ends[-1], dtype=np.int32),
        samples=lengths,
        opened=tuple(Opened(SlotId(slot), params, empty, empty) for slot in index.tolist()),
    )
