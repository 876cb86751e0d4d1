"""The executor. Verbs: launch(plan) -> Step; Step.sample(mask); Step.result() -> StepResult.

Owns: the model, the KV pool and the sampling state of each slot. Must not know: requests, the
queue, text. What a plan may ask but this executor cannot do is refused, never ignored.
"""

from __future__ import annotations

import numpy as np
import torch

from radixserve.attention.base import AttentionBackend, AttentionInputs
from radixserve.executor.inputs import InputBuilder, StepInputs
from radixserve.executor.kv_pool import KvPool
from radixserve.executor.outputs import hidden_sums, scores
from radixserve.executor.slots import refuse, take_slots
from radixserve.layers.context import ForwardContext
from radixserve.layers.operations import TORCH_LAYERS, LayerOperations
from radixserve.models.registry import Model
from radixserve.plan import SlotId, StepPlan, StepResult, TokenLogprobs
from radixserve.sampling.batch import SamplingBatch
from radixserve.sampling.edits import Bits
from radixserve.sampling.sampler import sample


class Executor:
    """Runs plans on one device. max_slots: slots that plans may name."""

    def __init__(
        self,
        model: Model,
        kv_pool: KvPool,
        attention: AttentionBackend,
        sampling: SamplingBatch,
        max_slots: int,
        device: torch.device,
        operations: LayerOperations = TORCH_LAYERS,
    ) -> None:
        self._operations = operations
        self._model = model
        self._kv_pool = kv_pool
        self._attention = attention
        self._sampling = sampling
        self._inputs = InputBuilder(max_slots, device)

    @property
    def shares_prefixes(self) -> bool:
        return self._attention.shares_prefixes

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Step:
        """Open and close slots, copy pages, run the model. Raises ValueError for what it cannot."""
        refuse(plan, self._attention)
        take_slots(plan, self._sampling)
        self._kv_pool.copy(plan.copies)
        inputs = self._inputs.build(plan)
        self._attention.plan(
            AttentionInputs(
                positions=plan.positions,
                lengths=plan.lengths,
                page_indptr=plan.page_indptr,
                page_indices=plan.page_indices,
                shared=plan.shared,
            )
        )
        ctx = ForwardContext(inputs.positions, self._attention, self._operations, inputs.wanted)
        hidden = self._model.forward(inputs.ids, ctx)
        return Step(self, plan, inputs, hidden)

    @torch.inference_mode()
    def draw(
        self, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor, mask: Bits | None
    ) -> StepResult:
        """Logits of the rows that sample or score, and what they give."""
        rows = inputs.sampling
        ids = np.zeros(0, np.int32)
        logprobs: dict[int, TokenLogprobs] = {}
        if len(rows):
            last = hidden  # mostly: nothing else is asked for
            if len(rows) != len(hidden):
                last = hidden[torch.from_numpy(inputs.last[rows]).long()]
            logits = self._model.logits(last)
            ids, found = sample(logits, plan.slots[rows], plan.samples[rows], self._sampling, mask)
            logprobs = {int(rows[index]): values for index, values in found.items()}
            self._inputs.remember(plan, rows, ids)
            for row, token in zip(rows.tolist(), ids.tolist()):
                self._sampling.append(SlotId(int(plan.slots[row])), token)
        return StepResult(
            step=plan.step,
            rows=rows,
            ids=ids,
            logprobs=logprobs,
            scores=tuple(
                scores(plan, inputs.last, hidden, self._model.logits, self._sampling.valid_ids)
            ),
            hidden=tuple(hidden_sums(plan, inputs.last, hidden)),
        )


class Step:
    """A launched step."""

    __slots__ = ("_executor", "_hidden", "_inputs", "_plan", "_result")

    def __init__(
        self, executor: Executor, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor
    ) -> None:
        self._executor = executor
        self._plan = plan
        self._inputs = inputs
        self._hidden = hidden
        self._result: StepResult | None = None

    def sample(self, mask: Bits | None = None) -> None:
        """Draw. mask: legal ids of each sampling row, see sampling.edits.edited."""
        self._result = self._executor.draw(self._plan, self._inputs, self._hidden, mask)

    def result(self) -> StepResult:
        """What was drawn, on the host; after sample()."""
        assert self._result is not None, "sample() comes before result()"
        return self._result
