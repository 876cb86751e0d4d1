"""A StepPlan's rows as the tensors that a forward needs.

Owns: the id that each slot sampled last, and the arithmetic from rows to tokens. Must not know:
models, the KV pool.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from radixserve.executor.outputs import wanted_lengths, wanted_tokens
from radixserve.plan import Int32, Output, StepPlan


@dataclass(frozen=True, slots=True)
class StepInputs:
    """ids, positions: [tokens] int64. wanted: [k] int64, the tokens whose hidden states are asked
    for, None for all. last: [rows], index of each row's last token among these.

    sampling: rows that draw a token, ascending.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    wanted: torch.Tensor | None
    last: Int32
    sampling: Int32


class InputBuilder:
    """last_ids: [slots] int64, on the device; a from_last row reads its slot's."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.last_ids = torch.zeros(slots, dtype=torch.int64, device=device)
        self._device = device

    def build(self, plan: StepPlan) -> StepInputs:
        """plan with lengths [2, 1], positions [4, 9], both sampling: positions [4, 5, 9], wanted
        [1, 2], last [0, 1]."""
        ends = np.cumsum(plan.lengths, dtype=np.int64)
        starts = ends - plan.lengths
        offset = np.arange(plan.tokens) - np.repeat(starts, plan.lengths)
        positions = np.repeat(plan.positions.astype(np.int64), plan.lengths) + offset
        ids = torch.from_numpy(plan.ids.astype(np.int64)).to(self._device)
        if plan.from_last.any():
            rows = np.flatnonzero(plan.from_last)
            where = torch.from_numpy(starts[rows]).to(self._device)
            slots = torch.from_numpy(plan.slots[rows].astype(np.int64)).to(self._device)
            ids[where] = self.last_ids[slots]
        wanted = wanted_lengths(plan)
        chosen = wanted_tokens(plan.lengths, wanted)
        return StepInputs(
            ids=ids,
            positions=torch.from_numpy(positions).to(self._device),
            wanted=None if chosen is None else torch.from_numpy(chosen).to(self._device),
            last=(np.cumsum(wanted) - 1).astype(np.int32),
            sampling=np.flatnonzero(plan.outputs == Output.SAMPLE).astype(np.int32),
        )

    def remember(self, plan: StepPlan, rows: Int32, ids: torch.Tensor) -> None:
        """Rows drew ids."""
        slots = torch.from_numpy(plan.slots[rows].astype(np.int64)).to(self._device)
        self.last_ids[slots] = ids.to(self._device, torch.int64)
