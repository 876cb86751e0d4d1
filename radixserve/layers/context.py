"""ForwardContext: everything a layer may know of the step, passed as an argument."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from radixserve.attention.base import AttentionBackend


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """positions: [tokens] int64, each token's place in its own sequence."""

    positions: torch.Tensor
    attention: AttentionBackend
