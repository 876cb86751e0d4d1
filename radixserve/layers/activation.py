"""Gated activations of the feed-forward layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up: [tokens, 2 * n], gate first. Returns silu(gate) * up: [tokens, n]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
