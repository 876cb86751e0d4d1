"""When the KV pool takes its memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# In a process of its own: one with memory to spare takes none for a pool.
SCRIPT = """
import json, psutil, torch
from radixserve.attention.base import AttentionShape
from radixserve.executor.kv_pool import KvPool

def taken(prefault):
    before = psutil.Process().memory_info().rss
    shape = AttentionShape(2, 4, 2, 64, 0.125)
    pool = KvPool(shape, 4096, 16, torch.float32, torch.device("cpu"), prefault=prefault)
    return (psutil.Process().memory_info().rss - before) / pool.num_bytes

print(json.dumps([taken(False), taken(True)]))
"""


def test_memory_is_taken_when_it_is_used_or_at_once() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    as_used, at_once = json.loads(ran.stdout)
    assert as_used == pytest.approx(0, abs=0.1)
    assert at_once == pytest.approx(1, abs=0.1)
