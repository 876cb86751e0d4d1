"""A plan's effect on slots, and what no executor here can do.

Owns: the order in which slots are closed, opened and told of forced tokens. Must not know: tensors
of a step.
"""

from __future__ import annotations

from radixserve.attention.base import AttentionBackend
from radixserve.plan import Output, StepPlan
from radixserve.sampling.batch import SamplingBatch

VERIFY = int(Output.VERIFY)


def refuse(plan: StepPlan, attention: AttentionBackend) -> None:
    """Raise ValueError for a plan that asks what is not there."""
    if (plan.outputs == VERIFY).any():
        raise ValueError("this executor has no verify rows")
    if plan.shared and not attention.shares_prefixes:
        raise ValueError("this executor has no shared-prefix attention")


def take_slots(plan: StepPlan, sampling: SamplingBatch) -> None:
    """Close, open and append as the plan says."""
    # A step that failed may have left slots open that are opened again here, or never have
    # opened the ones that are closed now.
    for slot in (*plan.closed, *(opened.slot for opened in plan.opened)):
        if slot in sampling.params:
            sampling.close(slot)
    for opened in plan.opened:
        sampling.open(opened)
    for appended in plan.appended:
        for token in appended.ids:
            sampling.append(appended.slot, token)
