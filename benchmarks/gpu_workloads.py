"""Requests through the real scheduler and an executor for a GPU, for the GPU check."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks import gpu_scene
from radixserve.cache.prefix import PrefixCache
from radixserve.config.schema import ScheduleConfig
from radixserve.executor.device import Device
from radixserve.models.decoder import Decoder
from radixserve.scheduler.scheduler import Scheduler
from radixserve.wire.messages import Generate
from radixserve.wire.params import SamplingParams


def serve(
    model: Decoder, device: Device, sizes: gpu_scene.Sizes, is_cached: bool, is_masked: bool
) -> float:
    """Seconds for sizes.shared_rows requests on one prompt of sizes.shared tokens, with overlap.

    is_masked: every draw under a mask of half the vocabulary, as under a grammar.
    """
    vocab, rows = model.spec.vocab_size, sizes.shared_rows
    tokens = sizes.shared + 8 + sizes.steps
    pages = (rows + 1) * (-(-tokens // gpu_scene.PAGE) + 1)
    executor = gpu_scene.make_executor(model, device, pages=pages, slots=rows)
    config = ScheduleConfig(max_running=rows, token_budget=max(4096, 2 * rows), chunk=2048)
    scheduler = Scheduler(
        config,
        PrefixCache(pages, gpu_scene.PAGE, enabled=is_cached),
        context_len=model.spec.context_len,
        vocab_size=vocab,
        stop_ids=(),
        token_bytes=[b"x"] * vocab,
    )
    random = np.random.default_rng(0)
    prompt = random.integers(0, vocab, sizes.shared, dtype=np.int32)
    for row in range(rows):
        ids = np.concatenate((prompt, random.integers(0, vocab, 8, dtype=np.int32)))
        params = SamplingParams(max_new_tokens=sizes.steps, temperature=0.0, ignore_eos=True)
        scheduler.handle(Generate(rid=f"r{row}", prompt=ids.tobytes(), params=params))
    words = np.full((rows, -(-vocab // 32)), 0x55555555, np.int32) if is_masked else None
    begin = time.perf_counter()
    before: Any = None
    while not scheduler.idle:
        plan = scheduler.plan()
        step = None if plan is None else executor.launch(plan)
        if before is not None:
            scheduler.apply(before.result())
        if plan is not None and step is not None:
            step.sample(None if words is None else words[: int((plan.outputs == 1).sum())])
        before = step
    return time.perf_counter() - begin
