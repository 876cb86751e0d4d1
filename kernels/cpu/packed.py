"""Weights in the order in which the native matrix products read them.

Owns: that order, both ways. Must not know: what a weight is for, who computes with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from radixserve.ints import ceil_div

PANEL = 32
"""Rows of weight that lie together, src/types.h: kPanel."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A matrix of [outs, inputs]; gated: of [2 * outs, inputs], a gate above its other factor.

    data: [panels, steps, PANEL, d]: for every step of d inputs (two in bfloat16, one in float32)
    those of PANEL rows side by side; filled up with zeros. A gated panel holds PANEL / 2 rows of
    the gate, then the same rows of the factor.
    """

    data: torch.Tensor
    outs: int
    inputs: int
    is_gated: bool = False

    def plain(self) -> torch.Tensor:
        """The matrix as it was."""
        rows = self.data.transpose(1, 2).flatten(2)[..., : self.inputs]
        if not self.is_gated:
            return rows.flatten(0, 1)[: self.outs].contiguous()
        halves = (half.flatten(0, 1)[: self.outs] for half in rows.chunk(2, dim=1))
        return torch.cat(tuple(halves))


def pack(weight: torch.Tensor, *, gated: bool = False) -> PackedWeight:
    """weight: [outs, inputs], or [2 * outs, inputs] where gated; float32 or bfloat16, copied.

    Raises ValueError for another type, a shape that is no matrix, or an odd number of gated rows.
    """
    if weight.dtype not in (torch.float32, torch.bfloat16) or weight.dim() != 2:
        raise ValueError(f"cannot pack {weight.dtype} {tuple(weight.shape)}")
    if gated and len(weight) % 2:
        raise ValueError(f"{len(weight)} rows have no halves")
    depth = 2 if weight.dtype == torch.bfloat16 else 1
    parts = weight.chunk(2) if gated else (weight,)
    outs, inputs = parts[0].shape
    height = PANEL // len(parts)
    panels, steps = ceil_div(outs, height), ceil_div(inputs, depth)
    data = torch.empty(panels, steps, PANEL, depth, dtype=weight.dtype)
    for place, part in enumerate(parts):
        whole = F.pad(part, (0, steps * depth - inputs, 0, panels * height - outs))
        rows = _words(whole.contiguous().view(panels, height, steps, depth))
        to = _words(data)[:, :, place * height : (place + 1) * height]
        to.copy_(rows.transpose(1, 2))
    return PackedWeight(data, outs, inputs, gated)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The last axis, four bytes long, as one number: copied in any order without a loop inside."""
    return tensor.view(torch.int32).squeeze(-1)
