"""A StepPlan's rows as the tensors that a forward needs.

Owns: the id that each slot sampled last, and the arithmetic from rows to tokens. Must not know:
models, the KV pool.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from radixserve.executor.outputs import SAMPLE, wanted_lengths, wanted_tokens
from radixserve.plan import Int32, StepPlan


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
    """Knows, on the host, what each slot sampled last: a from_last row reads it."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self._last_ids = np.zeros(slots, np.int64)
        self._device = device

    def build(self, plan: StepPlan) -> StepInputs:
        """plan with lengths [2, 1], positions [4, 9], both sampling: positions [4, 5, 9], wanted
        [1, 2], last [0, 1]."""
        starts = np.cumsum(plan.lengths, dtype=np.int64) - plan.lengths
        positions = np.arange(plan.tokens) + np.repeat(plan.positions - starts, plan.lengths)
        ids = plan.ids.astype(np.int64)
        ids[starts[plan.from_last]] = self._last_ids[plan.slots[plan.from_last]]
        wanted = wanted_lengths(plan)
        chosen = wanted_tokens(plan.lengths, wanted)
        return StepInputs(
            ids=torch.from_numpy(ids).to(self._device),
            positions=torch.from_numpy(positions).to(self._device),
            wanted=None if chosen is None else torch.from_numpy(chosen).to(self._device),
            last=np.cumsum(wanted, dtype=np.int32) - 1,
            sampling=np.flatnonzero(plan.outputs == SAMPLE).astype(np.int32),
        )

    def remember(self, plan: StepPlan, rows: Int32, ids: Int32) -> None:
        """Rows drew ids."""
        self._last_ids[plan.slots[rows]] = ids
