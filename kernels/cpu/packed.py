"""Weights in the order in which the native matrix products read them.

Owns: that order, both ways, and the memory of packed weights. Must not know: what a weight is for,
who computes with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from radixserve.ints import ceil_div

PANEL = 32
"""Rows of weight that lie together, src/types.h: kPanel."""

_LINE = 128  # bytes that a step of a panel has in both types


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


class Arena:
    """Room for packed weights, in one piece.

    In pages of 4 KiB a product of few rows waits for the translation of addresses: in 2 MiB pages
    weights were read 1.3 to 1.6 times as fast. The system gives these where they are asked for,
    which numpy does for large arrays and torch does not, and only in pieces of several MiB.
    """

    def __init__(self, size: int) -> None:
        """size: bytes, at least the sum of packed_bytes of what will be put in."""
        room = torch.from_numpy(np.empty(size + _LINE, np.uint8))
        self._room = room[-room.data_ptr() % _LINE :]
        self._used = 0

    def take(self, size: int) -> torch.Tensor:
        """[size] uint8 of memory not yet taken. ValueError where so much is not left."""
        if self._used + size > len(self._room) - len(self._room) % _LINE:
            raise ValueError(f"{size} bytes do not fit: {self._used} of {len(self._room)} are used")
        self._used += size
        return self._room[self._used - size : self._used]


def pack(weight: torch.Tensor, *, gated: bool = False, arena: Arena | None = None) -> PackedWeight:
    """weight: [outs, inputs], or [2 * outs, inputs] where gated; float32 or bfloat16, copied.

    arena: where the copy goes; None: to memory of its own. Raises ValueError for another type, a
    shape that is no matrix, an odd number of gated rows, or an arena too small.
    """
    shape = _packed_shape(weight, gated)
    panels, steps, _, depth = shape
    size = math.prod(shape) * weight.element_size()
    room = torch.empty(size, dtype=torch.uint8) if arena is None else arena.take(size)
    data = room.view(weight.dtype).view(shape)
    parts = weight.chunk(2) if gated else (weight,)
    outs, inputs = parts[0].shape
    height = PANEL // len(parts)
    for place, part in enumerate(parts):
        whole = F.pad(part, (0, steps * depth - inputs, 0, panels * height - outs))
        rows = _words(whole.contiguous().view(panels, height, steps, depth))
        to = _words(data)[:, :, place * height : (place + 1) * height]
        to.copy_(rows.transpose(1, 2))
    return PackedWeight(data, outs, inputs, gated)


def packed_bytes(weight: torch.Tensor, *, gated: bool = False) -> int:
    """What the weight takes once packed. Raises as pack."""
    return math.prod(_packed_shape(weight, gated)) * weight.element_size()


def _packed_shape(weight: torch.Tensor, gated: bool) -> tuple[int, int, int, int]:
    if weight.dtype not in (torch.float32, torch.bfloat16) or weight.dim() != 2:
        raise ValueError(f"cannot pack {weight.dtype} {tuple(weight.shape)}")
    rows, inputs = weight.shape
    if gated and rows % 2:
        raise ValueError(f"{rows} rows have no halves")
    depth = 4 // weight.element_size()
    panels = ceil_div(rows // 2, PANEL // 2) if gated else ceil_div(rows, PANEL)
    return panels, ceil_div(inputs, depth), PANEL, depth


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The last axis, four bytes long, as one number: copied in any order without a loop inside."""
    return tensor.view(torch.int32).squeeze(-1)
