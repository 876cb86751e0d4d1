"""The executor. Verbs: launch(plan) -> Step; Step.sample(mask); Step.result() -> StepResult.

Owns: the model, the KV pool and the sampling state of each slot. Must not know: requests, the
queue, text. What a plan may ask but this executor cannot do is refused, never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from radixserve.attention import select
from radixserve.attention.base import AttentionBackend, AttentionInputs
from radixserve.config.schema import Config
from radixserve.executor import memory
from radixserve.executor.inputs import InputBuilder, StepInputs
from radixserve.executor.kv_pool import KvPool, bytes_per_token
from radixserve.kernels.cpu import library
from radixserve.kernels.cpu.library import Library
from radixserve.layers.context import ForwardContext
from radixserve.log import logger
from radixserve.models.decoder import attention_shape
from radixserve.models.registry import Model, load_model
from radixserve.models.spec import read_spec
from radixserve.plan import Float64, Output, SlotId, StepPlan, StepResult, TokenLogprobs
from radixserve.sampling.batch import SamplingBatch
from radixserve.sampling.edits import Bits
from radixserve.sampling.logprobs import score_tokens
from radixserve.sampling.sampler import sample
from radixserve.weights import source


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
    ) -> None:
        self._model = model
        self._kv_pool = kv_pool
        self._attention = attention
        self._sampling = sampling
        self._inputs = InputBuilder(max_slots, device)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Step:
        """Open and close slots, copy pages, run the model. Raises ValueError for what it cannot."""
        _refuse(plan, self._attention)
        self._take_slots(plan)
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
        hidden = self._model.forward(inputs.ids, ForwardContext(inputs.positions, self._attention))
        return Step(self, plan, inputs, hidden)

    def _take_slots(self, plan: StepPlan) -> None:
        # A step that failed may have left slots open that are opened again here, or never have
        # opened the ones that are closed now.
        for slot in (*plan.closed, *(opened.slot for opened in plan.opened)):
            if slot in self._sampling.params:
                self._sampling.close(slot)
        for opened in plan.opened:
            self._sampling.open(opened)
        for appended in plan.appended:
            for token in appended.ids:
                self._sampling.append(appended.slot, token)

    @torch.inference_mode()
    def draw(
        self, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor, mask: Bits | None
    ) -> StepResult:
        """Logits of the rows that sample or score, and what they give."""
        rows = inputs.sampling
        ids = np.zeros(0, np.int32)
        logprobs: dict[int, TokenLogprobs] = {}
        if len(rows):
            logits = self._model.logits(hidden[torch.from_numpy(inputs.last[rows]).long()])
            ids, found = sample(logits, plan.slots[rows], plan.samples[rows], self._sampling, mask)
            logprobs = {int(rows[index]): values for index, values in found.items()}
            self._inputs.remember(plan, rows, torch.from_numpy(ids))
            for row, token in zip(rows.tolist(), ids.tolist()):
                self._sampling.append(SlotId(int(plan.slots[row])), token)
        return StepResult(
            step=plan.step,
            rows=rows,
            ids=ids,
            logprobs=logprobs,
            scores=tuple(self._score(plan, inputs, hidden)),
            hidden=tuple(self._sum(plan, inputs, hidden)),
        )

    @staticmethod
    def _sum(plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor) -> list[Float64]:
        """In float64, so that it matters little in how many chunks a prompt comes."""
        sums = []
        for order in plan.hidden:
            end = int(inputs.last[order.row]) + 1
            past = int(plan.positions[order.row] + plan.lengths[order.row]) - order.first
            sums.append(hidden[end - past : end].double().sum(dim=0).cpu().numpy())
        return sums

    def _score(
        self, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor
    ) -> list[TokenLogprobs]:
        scores = []
        for order in plan.scores:
            start = int(inputs.last[order.row]) + 1 - int(plan.lengths[order.row])
            first = start + order.first - int(plan.positions[order.row])
            states = hidden[first : first + len(order.targets)]
            scores.append(
                score_tokens(
                    states,
                    self._model.logits,
                    order.targets,
                    order.top,
                    self._sampling.valid_ids,
                    order.ids,
                )
            )
        return scores


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


def _refuse(plan: StepPlan, attention: AttentionBackend) -> None:
    if (plan.outputs == Output.VERIFY).any():
        raise ValueError("this executor has no verify rows")
    if plan.shared and not attention.shares_prefixes:
        raise ValueError("this executor has no shared-prefix attention")


@dataclass(frozen=True, slots=True)
class LoadedExecutor:
    executor: Executor
    pages: int
    context_len: int
    columns: int  # of the logits
    dtype: str


def _native(config: Config) -> Library | None:
    if config.model.attention != "native":
        logger.info("kernels: torch (attention backend %s)", config.model.attention)
        return None
    native = library.load()
    if native is not None:
        native.set_threads(config.model.threads)
    return native


def load_executor(config: Config, valid_ids: int) -> LoadedExecutor:
    """Load the model that a resolved config names. valid_ids: ids with a token.

    Raises ModelLoadError or ConfigError.
    """
    torch.set_num_threads(config.model.threads)
    device = torch.device(config.model.device)
    dtype: torch.dtype = getattr(torch, config.model.dtype)
    origin = source.resolve(config.model.model)
    spec = read_spec(origin)
    native = _native(config)
    model = load_model(origin, spec, dtype, device, native)
    shape = attention_shape(spec)
    slots = config.schedule.max_running
    pages = memory.fit_pages(
        config.cache,
        bytes_per_token(shape, dtype),
        spec.context_len * slots,
        memory.free_memory(),
    )
    pool = KvPool(shape, pages, config.cache.page_size, dtype, device)
    backend = select.choose(config.model.attention, device)
    attention = backend(shape, config.cache.page_size, pool.k, pool.v)
    sampling = SamplingBatch(slots, spec.vocab_size, device, valid_ids, native)
    logger.info("%s, %s on %s", spec.architecture, config.model.dtype, device)
    logger.info(
        "KV pool: %d tokens in pages of %d, up to %d MiB (--kv-tokens sets it)",
        pages * config.cache.page_size,
        config.cache.page_size,
        pool.num_bytes >> 20,
    )
    executor = Executor(model, pool, attention, sampling, slots, device)
    return LoadedExecutor(executor, pages, spec.context_len, spec.vocab_size, config.model.dtype)
