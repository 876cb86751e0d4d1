"""ForwardContext: everything a layer may know of the step, passed as an argument."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from radixserve.attention.base import AttentionBackend
from radixserve.layers.operations import TORCH_LAYERS, LayerOperations


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """positions: [tokens] int64, each token's place in its own sequence. operations: those between
    the matrix products. wanted: [k], ascending, the tokens whose hidden states are wanted, None for
    all; what the last layer adds to others is not computed."""

    positions: torch.Tensor
    attention: AttentionBackend
    operations: LayerOperations = TORCH_LAYERS
    wanted: torch.Tensor | None = None
