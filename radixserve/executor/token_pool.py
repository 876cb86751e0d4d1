"""The id that each slot sampled last, kept on the device.

Owns: those ids, and how a step's tokens are read from them, so that a step is launched before the
host knows what the one before it drew. Must not know: models, copies. Rows that only fill a graph
up use the slot behind the last one.
"""

from __future__ import annotations

import numpy as np
import torch

from radixserve.plan import Int32, StepPlan

FROM_LAST = -1  # in place of an id: the one that the slot sampled last


class TokenPool:
    """scratch: the slot of rows that belong to no request."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.scratch = slots
        self._last = torch.zeros(slots + 1, dtype=torch.int64, device=device)

    def read(self, ids: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """ids: [tokens] int32, FROM_LAST for the slot's last. slots: [tokens]. [tokens] int64."""
        return torch.where(ids < 0, self._last[slots.long()], ids.long())

    def write(self, slots: torch.Tensor, ids: torch.Tensor) -> None:
        """Slots [k] drew ids [k]; -1, which no draw gives but of broken logits, becomes 0."""
        self._last[slots.long()] = ids.long().clamp_min(0)


def pool_arrays(plan: StepPlan) -> tuple[Int32, Int32]:
    """ids and slots of every token of a plan, as TokenPool.read takes them: [tokens] each.

    lengths [2, 1], ids [7, 8, 0], slots [4, 5], the second row from_last: [7, 8, -1] and [4, 4, 5].
    """
    from_last = np.repeat(plan.from_last, plan.lengths)
    ids = np.where(from_last, np.int32(FROM_LAST), plan.ids)
    return ids.astype(np.int32), np.repeat(plan.slots, plan.lengths)
