"""What rows give back beside the tokens they draw: scores of a prompt, sums of hidden states.

Owns: where in a step's hidden states a row's order lies. Must not know: slots, how a step ran.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from radixserve.plan import (
    Float64,
    HiddenRange,
    Int32,
    Output,
    ScoreRange,
    StepPlan,
    TokenLogprobs,
)
from radixserve.sampling.logprobs import score_tokens

SAMPLE = int(Output.SAMPLE)  # numpy compares with a number four times as fast as with a name


def wanted_lengths(plan: StepPlan) -> Int32:
    """Of how many of each row's last tokens the hidden states are asked for: [rows]."""
    wanted: Int32 = (plan.outputs == SAMPLE).astype(np.int32)
    orders: tuple[ScoreRange | HiddenRange, ...] = (*plan.scores, *plan.hidden)
    for order in orders:
        end = plan.positions[order.row] + plan.lengths[order.row]
        wanted[order.row] = max(wanted[order.row], end - order.first)
    return wanted


def wanted_tokens(lengths: Int32, wanted: Int32) -> npt.NDArray[np.int64] | None:
    """The places in the step of each row's last `wanted` tokens; None where these are all.

    Example: lengths [3, 1, 2] and wanted [1, 1, 0] give [2, 3].
    """
    left_out = lengths - wanted
    if not left_out.any():
        return None
    before = np.repeat(np.cumsum(left_out, dtype=np.int64), wanted)
    places: npt.NDArray[np.int64] = before + np.arange(len(before))
    return places


def hidden_sums(plan: StepPlan, last: Int32, hidden: torch.Tensor) -> list[Float64]:
    """plan.hidden's, in float64, so that it matters little in how many chunks a prompt comes.

    hidden: [k, hidden_size], of the wanted tokens. last: [rows], index of each row's last one.
    """
    sums = []
    for order in plan.hidden:
        end = int(last[order.row]) + 1
        past = int(plan.positions[order.row] + plan.lengths[order.row]) - order.first
        sums.append(hidden[end - past : end].double().sum(dim=0).cpu().numpy())
    return sums


def scores(
    plan: StepPlan,
    last: Int32,
    hidden: torch.Tensor,
    to_logits: Callable[[torch.Tensor], torch.Tensor],
    valid_ids: int,
) -> list[TokenLogprobs]:
    """plan.scores'. last, hidden: as hidden_sums. valid_ids: ids below it are tokens."""
    found = []
    for order in plan.scores:
        start = int(last[order.row]) + 1 - int(plan.lengths[order.row])
        first = start + order.first - int(plan.positions[order.row])
        states = hidden[first : first + len(order.targets)]
        found.append(
            score_tokens(states, to_logits, order.targets, order.top, valid_ids, order.ids)
        )
    return found
