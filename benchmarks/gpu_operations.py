"""Draws and page copies of the kernels beside torch's, for the GPU check."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks import gpu_scene
from radixserve.attention.base import AttentionShape
from radixserve.executor.kv_pool import KvPool
from radixserve.executor.operations import TorchOperations, TritonOperations
from radixserve.plan import Opened, SlotId
from radixserve.sampling.batch import SamplingBatch
from radixserve.sampling.device import DrawTensors, draw_arrays
from radixserve.wire.params import SamplingParams

PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=1),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=2),
    SamplingParams(temperature=1.3, min_p=0.02, seed=2**62 + 5),
)


def differences(place: torch.device, vocab: int, dtype: torch.dtype) -> dict[str, float]:
    """draw: rows of 4 whose id differs from torch's in float64. copy_kv: numbers that differ."""
    pools = [KvPool(AttentionShape(2, 4, 2, 16, 0.25), 6, 16, dtype, place) for _ in range(2)]
    for one, other in zip((*pools[0].k, *pools[0].v), (*pools[1].k, *pools[1].v)):
        one.copy_(torch.randn(one.shape, device=place))
        other.copy_(one)
    orders = torch.tensor([0, 3, 16, 1, 4, 5], dtype=torch.int32, device=place)
    kernels, plain = TritonOperations(pools[0]), TorchOperations()
    kernels.copy_pages(pools[0], orders)
    plain.copy_pages(pools[1], orders)
    pairs = zip((*pools[0].k, *pools[0].v), (*pools[1].k, *pools[1].v))
    copied = sum(float((one != other).sum()) for one, other in pairs)

    batch = SamplingBatch(len(PARAMS), vocab, place)
    for slot, params in enumerate(PARAMS):
        batch.open(Opened(SlotId(slot), params, gpu_scene.EMPTY, gpu_scene.EMPTY))
    slots = np.arange(len(PARAMS), dtype=np.int32)
    arrays = draw_arrays(slots, slots + 7, batch, needs_uniform=True)
    draws = DrawTensors(*(torch.from_numpy(array).to(place) for array in arrays))
    logits = torch.randn(len(PARAMS), vocab, device=place) * 3
    drawn = kernels.draw(logits, draws) != plain.draw(logits, draws)
    return {"draw": float(drawn.sum()), "copy_kv": copied}
