"""Gated activations of the feed-forward layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from radixserve.kernels.cpu import ops
from radixserve.kernels.cpu.library import Library


def silu_mul(gate_up: torch.Tensor, native: Library | None = None) -> torch.Tensor:
    """gate_up: [tokens, 2 * n], gate first. Returns silu(gate) * up: [tokens, n].

    native: computes it where given, else torch.
    """
    if native is not None:
        return ops.silu_mul(native, gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
