"""The operations between a layer's matrix products: torch's on any device, Triton's kernels where
they run.

Owns: the choice between the two. Must not know: which layer asks, attention.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F


class LayerOperations(Protocol):
    """Each returns a new tensor and changes none."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x over the root mean square of its last axis, times weight. x: [..., size]."""

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of x + residual, and that sum."""

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up. gate_up: [tokens, 2 * n], gate first. Returns [tokens, n]."""

    def gelu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gelu(gate) * up, gelu in its tanh form; as silu_mul."""


class TorchLayerOperations:
    """On any device."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = residual + x
        return self.rms_norm(total, weight, eps), total

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def gelu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh").mul_(up)


class TritonLayerOperations:
    """Where Triton's kernels run."""

    def __init__(self) -> None:
        # Imported here: Triton is not there on every platform, and slow to import.
        from radixserve.kernels.triton.gated import gelu_mul, silu_mul
        from radixserve.kernels.triton.rms_norm import rms_norm

        self._rms_norm, self._silu_mul, self._gelu_mul = rms_norm, silu_mul, gelu_mul

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self._rms_norm(x, weight, eps)[0]

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._rms_norm(x, weight, eps, residual)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._silu_mul(gate_up)

    def gelu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._gelu_mul(gate_up)


TORCH_LAYERS = TorchLayerOperations()


def layer_operations(has_kernels: bool) -> LayerOperations:
    """has_kernels: Triton's kernels run where the layers do."""
    return TritonLayerOperations() if has_kernels else TORCH_LAYERS
