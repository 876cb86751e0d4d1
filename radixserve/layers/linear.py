"""Linear layers, several projections of one input fused into one matrix.

Owns: the fused weight and where each projection's rows lie in it. Must not know: what the
projections are for, files.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


class Linear:
    """y = x @ weight.T + bias for the projections `outs`, one after another along the last axis.

    weight: [sum(outs), inputs]. bias: [sum(outs)] or None. Both are empty until filled by views.
    """

    def __init__(
        self,
        inputs: int,
        outs: tuple[int, ...],
        *,
        has_bias: bool = False,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._outs = outs
        self.weight = torch.empty(sum(outs), inputs, dtype=dtype, device=device)
        self.bias = torch.empty(sum(outs), dtype=dtype, device=device) if has_bias else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tokens, inputs]. Returns [tokens, sum(outs)]."""
        return F.linear(x, self.weight, self.bias)

    def views(self, *names: str) -> dict[str, torch.Tensor]:
        """names, one per projection -> its rows: {"NAME.weight": [out, inputs], "NAME.bias": ...}.

        The views share storage with the layer: writing to them fills it.
        """
        views = {
            f"{name}.weight": rows
            for name, rows in zip(names, torch.split(self.weight, list(self._outs)), strict=True)
        }
        if self.bias is not None:
            for name, rows in zip(names, torch.split(self.bias, list(self._outs)), strict=True):
                views[f"{name}.bias"] = rows
        return views
