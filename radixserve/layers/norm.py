"""RMS normalisation.

Owns: the weight. Must not know: what is normalised.
"""

from __future__ import annotations

import torch

from radixserve.layers.operations import TORCH_LAYERS, LayerOperations


class RmsNorm:
    """x / sqrt(mean(x ** 2) + eps) * weight over the last axis, computed in float32.

    weight: [size], empty until filled.
    """

    def __init__(
        self,
        size: int,
        eps: float,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.weight = torch.empty(size, dtype=dtype, device=device)
        self.eps = eps

    def __call__(self, x: torch.Tensor, operations: LayerOperations = TORCH_LAYERS) -> torch.Tensor:
        """x: [..., size]. Returns the same shape and dtype."""
        return operations.rms_norm(x, self.weight, self.eps)

    def add(
        self, x: torch.Tensor, residual: torch.Tensor, operations: LayerOperations
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of x + residual, and that sum. x, residual: [..., size]."""
        return operations.add_rms_norm(x, residual, self.weight, self.eps)
