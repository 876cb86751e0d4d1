"""The attention layer: projections around optional q/k norm, rotary and the backend.

Owns: its projections and norms. Must not know: pages, rows, which backend runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from radixserve.attention.base import AttentionShape, RotatingBackend
from radixserve.layers.context import ForwardContext
from radixserve.layers.linear import Linear
from radixserve.layers.norm import RmsNorm
from radixserve.layers.rotary import Rotation, rotate


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """What differs between members of the family. qk_norm_eps: None for no q/k norm."""

    has_bias: bool
    has_output_bias: bool
    qk_norm_eps: float | None


class Attention:
    """Layer `layer_id`: qkv, [tokens, hidden_size] -> heads, then attend, then output."""

    def __init__(
        self,
        layer_id: int,
        hidden_size: int,
        shape: AttentionShape,
        options: AttentionOptions,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._layer_id = layer_id
        self._shape = shape
        self._qk_norm_eps = options.qk_norm_eps or 0.0
        q_size = shape.num_qo_heads * shape.head_dim
        kv_size = shape.num_kv_heads * shape.head_dim
        self.qkv = Linear(
            hidden_size,
            (q_size, kv_size, kv_size),
            has_bias=options.has_bias,
            dtype=dtype,
            device=device,
        )
        self.output = Linear(
            q_size, (hidden_size,), has_bias=options.has_output_bias, dtype=dtype, device=device
        )
        # Not torch.empty: a checkpoint has scales only if it was made for an fp8 cache.
        ones = torch.ones(shape.num_kv_heads, device=device)
        self.kv_scales = (ones, ones.clone())
        self.sinks: torch.Tensor | None = None
        if shape.has_sinks:
            self.sinks = torch.empty(shape.num_qo_heads, dtype=dtype, device=device)
        self.q_norm = self.k_norm = None
        if options.qk_norm_eps is not None:
            self.q_norm = RmsNorm(shape.head_dim, options.qk_norm_eps, dtype=dtype, device=device)
            self.k_norm = RmsNorm(shape.head_dim, options.qk_norm_eps, dtype=dtype, device=device)

    def attend(
        self, projected: torch.Tensor, rotation: Rotation, ctx: ForwardContext
    ) -> torch.Tensor:
        """projected: [tokens, (num_qo_heads + 2 * num_kv_heads) * head_dim], of qkv; it may be
        changed. Returns [tokens, num_qo_heads * head_dim], for output."""
        shape = self._shape
        heads = projected.view(projected.shape[0], -1, shape.head_dim)
        rotating = ctx.attention.rotating
        if rotating is not None:
            return self._rotating(rotating, heads, rotation)
        # q and k lie side by side, so one rotation serves both.
        parts = [shape.num_qo_heads, shape.num_kv_heads]
        qk, v = heads[:, : sum(parts)], heads[:, sum(parts) :]
        if self.q_norm is not None and self.k_norm is not None:
            q, k = torch.split(qk, parts, dim=1)
            normed = self.q_norm(q, ctx.operations), self.k_norm(k, ctx.operations)
            qk = torch.cat(normed, dim=1)
        q, k = torch.split(rotate(qk, rotation), parts, dim=1)
        return ctx.attention.run(self._layer_id, q, k, v)

    def _rotating(
        self, backend: RotatingBackend, heads: torch.Tensor, rotation: Rotation
    ) -> torch.Tensor:
        half = self._shape.head_dim // 2
        angles = rotation.cos[:, 0, half:], rotation.sin[:, 0, half:]
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            norms = self.q_norm.weight, self.k_norm.weight
        return backend.run_rotating(self._layer_id, heads, angles, norms, self._qk_norm_eps)

    def views(self, prefix: str) -> dict[str, torch.Tensor]:
        """Checkpoint name -> the part of a parameter that it fills."""
        names = (f"{prefix}.q_proj", f"{prefix}.k_proj", f"{prefix}.v_proj")
        views = self.qkv.views(*names) | self.output.views(f"{prefix}.o_proj")
        if self.q_norm is not None and self.k_norm is not None:
            views[f"{prefix}.q_norm.weight"] = self.q_norm.weight
            views[f"{prefix}.k_norm.weight"] = self.k_norm.weight
        if self.sinks is not None:
            views[f"{prefix}.sinks"] = self.sinks
        return views
