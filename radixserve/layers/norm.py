"""RMS normalisation.

Owns: the weight. Must not know: what is normalised.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from radixserve.kernels.cpu import ops
from radixserve.kernels.cpu.library import Library


class RmsNorm:
    """x / sqrt(mean(x ** 2) + eps) * weight over the last axis, computed in float32.

    weight: [size], empty until filled. native: computes it where given, else torch.
    """

    def __init__(
        self,
        size: int,
        eps: float,
        *,
        dtype: torch.dtype,
        device: torch.device,
        native: Library | None = None,
    ) -> None:
        self.weight = torch.empty(size, dtype=dtype, device=device)
        self._eps = eps
        self._native = native

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., size]. Returns the same shape and dtype."""
        if self._native is not None:
            return ops.rms_norm(self._native, x.contiguous(), self.weight, self._eps)[0]
        return F.rms_norm(x, self.weight.shape, self.weight, self._eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of x + residual, and that sum. x, residual: [..., size]."""
        if self._native is not None:
            return ops.rms_norm(self._native, x, self.weight, self._eps, residual)
        total = residual + x
        return self(total), total
