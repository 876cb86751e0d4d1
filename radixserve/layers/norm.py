"""RMS normalisation.

Owns: the weight. Must not know: what is normalised.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


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
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., size]. Returns the same shape and dtype."""
        return F.rms_norm(x, self.weight.shape, self.weight, self._eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of x + residual, and that sum. x, residual: [..., size]."""
        total = residual + x
        return self(total), total
