"""When the KV pool takes its memory."""

from __future__ import annotations

import psutil
import pytest
import torch

from radixserve.attention.base import AttentionShape
from radixserve.executor.kv_pool import KvPool

SHAPE = AttentionShape(2, 4, 2, 64, 0.125)


@pytest.mark.parametrize(("prefault", "share"), [(True, 1.0), (False, 0.0)])
def test_memory_is_taken_when_it_is_used_or_at_once(prefault: bool, share: float) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    pool = KvPool(SHAPE, 6144, 16, torch.float32, torch.device("cpu"), prefault=prefault)
    taken = process.memory_info().rss - before
    assert pool.num_bytes == 192 * 2**20  # in tensors too large for memory that was freed before
    assert taken / pool.num_bytes == pytest.approx(share, abs=0.2)
    assert not pool.k[0].any()
