"""The Triton backend where it cannot run: said at once, with what to do."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is built for Linux on x86-64")

from radixserve.attention import select
from radixserve.attention.base import AttentionShape
from radixserve.errors import ConfigError


def test_a_cpu_without_the_interpreter_is_refused() -> None:
    backend = select.choose("triton", "cpu")
    cache = [torch.zeros(1, 16, 1, 16)]
    with pytest.raises(ConfigError, match="TRITON_INTERPRET=1"):
        backend(AttentionShape(1, 1, 1, 16, 1.0), 16, cache, cache)
