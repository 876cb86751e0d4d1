"""What rows give back beside the tokens they draw: scores of a prompt, sums of hidden states.

Owns: where in a step's hidden states a row's order lies. Must not know: slots, how a step ran.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from radixserve.plan import Float64, Int32, StepPlan, TokenLogprobs
from radixserve.sampling.logprobs import score_tokens


def hidden_sums(plan: StepPlan, last: Int32, hidden: torch.Tensor) -> list[Float64]:
    """plan.hidden's, in float64, so that it matters little in how many chunks a prompt comes.

    last: [rows], index of each row's last token in hidden: [tokens, hidden_size].
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
