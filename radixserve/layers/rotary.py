"""Rotary positions: frequencies, their scalings, and the rotation of q and k.

Owns: the arithmetic, always in float32. Must not know: which model uses which scaling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Rotation:
    """What one step's positions turn by, shared by all layers.

    cos, sin: [tokens, 1, head_dim] float32; sin is negative in its first half, so that
    x * cos + swap_halves(x) * sin is the rotation.
    """

    cos: torch.Tensor
    sin: torch.Tensor


def frequencies(head_dim: int, theta: float) -> torch.Tensor:
    """theta ** (-2i / head_dim) for i in 0 .. head_dim / 2 - 1: [head_dim / 2] float32."""
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def scale_llama3(
    inv_freq: torch.Tensor,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_context: int,
) -> torch.Tensor:
    """Divide low frequencies by factor, keep high ones, blend between: [head_dim / 2] float32.

    A frequency counts by how often it turns in original_context positions: fewer than
    low_freq_factor times is low, more than high_freq_factor times is high.
    """
    turns = original_context * inv_freq / (2 * math.pi)
    keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0)
    return inv_freq * (keep + (1.0 - keep) / factor)


def rotation(inv_freq: torch.Tensor, positions: torch.Tensor) -> Rotation:
    """inv_freq: [head_dim / 2] float32. positions: [tokens] int64."""
    angles = positions.float()[:, None, None] * inv_freq
    cos, sin = angles.cos(), angles.sin()
    return Rotation(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))


def rotate(x: torch.Tensor, by: Rotation) -> torch.Tensor:
    """x: [tokens, heads, head_dim], pairs (i, i + head_dim / 2). Returns the same shape, dtype."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * by.cos, swapped, by.sin).to(x.dtype)
