"""The executor for a GPU: launches a step without waiting for the one before.

Owns: the order in which a step's copies, model, edits and draw are queued, and the choice between a
graph and an eager forward. Must not know: requests, the queue, how a device does what it is asked.

Nothing of launch() and sample() waits for the device. Ids come back into pinned memory, and
result() waits for the event behind that copy. A row's own last token is read from the token pool on
the device. Log-probabilities, scores and sums of hidden states are computed in result(), which then
waits for all that is queued.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from radixserve.attention.base import AttentionBackend, AttentionInputs
from radixserve.errors import RadixServeError
from radixserve.executor.device import Device, Event, Graph
from radixserve.executor.graphs import (
    GraphStore,
    array_room,
    graph_sizes,
    is_pure_decode,
    padded,
    padded_inputs,
)
from radixserve.executor.kv_pool import KvPool
from radixserve.executor.operations import Operations, TorchOperations, TritonOperations
from radixserve.executor.outputs import hidden_sums, scores, wanted_lengths, wanted_tokens
from radixserve.executor.slots import refuse, take_slots
from radixserve.executor.staging import Staging
from radixserve.executor.token_pool import TokenPool, pool_arrays
from radixserve.layers.context import ForwardContext
from radixserve.layers.operations import layer_operations
from radixserve.models.registry import Model
from radixserve.plan import Int32, Output, PageId, SlotId, StepPlan, StepResult, TokenLogprobs
from radixserve.sampling.batch import SamplingBatch, SeenTokens
from radixserve.sampling.device import DrawTensors, draw_arrays
from radixserve.sampling.edits import Bits, hold_back_stops, moved, penalise
from radixserve.sampling.sampler import LogprobOrder, order_logprobs, refuse_rows, told_logprobs

ROW_BYTES = 8  # of the largest array that has a number a row
INDEX_BYTES = 2**24  # of page tables in a graph's step; larger steps run eagerly
RESULTS = 2  # steps whose ids may be on their way


@dataclass(frozen=True, slots=True)
class Placed:
    """A step's arrays on the device. ids, slots, positions: [tokens]; last, sampled: [k] int32,
    the place among the wanted tokens and the slot of each sampling row; attention: as the backend
    prepared them."""

    ids: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    last: torch.Tensor
    sampled: torch.Tensor
    draws: DrawTensors
    attention: Sequence[torch.Tensor]


COMMON = 13  # arrays of Placed before those of attention


def place(tensors: Sequence[torch.Tensor]) -> Placed:
    """From tensors in the order of Placed, the draws' eight in theirs."""
    ids, slots, positions, last, sampled = tensors[:5]
    draws = DrawTensors(*tensors[5:COMMON])
    return Placed(ids, slots, positions, last, sampled, draws, tensors[COMMON:])


class DeviceExecutor:
    """Runs plans on one device. Slots are those of sampling. scratch: a page of no request."""

    def __init__(
        self,
        model: Model,
        kv_pool: KvPool,
        attention: AttentionBackend,
        sampling: SamplingBatch,
        device: Device,
        *,
        scratch: PageId,
        uses_graphs: bool,
    ) -> None:
        slots = len(sampling.temperature)
        self._model = model
        self._kv_pool = kv_pool
        self._attention = attention
        self._sampling = sampling
        self._device = device
        self._scratch = scratch
        self._pool = TokenPool(slots, device.place)
        self._layers = layer_operations(device.has_kernels)
        self._operations: Operations = TorchOperations()
        if device.has_kernels:
            self._operations = TritonOperations(kv_pool)
        self._staging = Staging(device)
        self._masks = Staging(device)
        self.graphs = GraphStore(device, graph_sizes(slots) if uses_graphs else ())
        self._slots = slots
        self._fixed: dict[int, Staging] = {}  # by the number of a form's arrays
        self._ids_cpu = [device.pinned(4 * slots).view(torch.int32) for _ in range(RESULTS)]
        self._steps = 0

    @property
    def shares_prefixes(self) -> bool:
        return self._attention.shares_prefixes

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> DeviceStep:
        """Queue the step up to its hidden states. Raises ValueError for what it cannot,
        RadixServeError where memory runs out."""
        refuse(plan, self._attention)
        take_slots(plan, self._sampling)
        rows = np.flatnonzero(plan.outputs == Output.SAMPLE).astype(np.int32)
        with naming_memory():
            size = self._graph_size(plan)
            ran = None if size is None else self._replay(plan, rows, size)
            placed, hidden = ran or self._eager(plan, rows)
        return DeviceStep(self, plan, rows, placed, hidden)

    # ---- the forward ----

    def _graph_size(self, plan: StepPlan) -> int | None:
        if self._attention.staged is None or not is_pure_decode(plan):
            return None
        size = self.graphs.size_for(plan.rows)
        if size is None or 4 * (len(plan.page_indices) + size) > INDEX_BYTES:
            return None
        return size

    def _eager(self, plan: StepPlan, rows: Int32) -> tuple[Placed, torch.Tensor]:
        inputs = AttentionInputs(
            positions=plan.positions,
            lengths=plan.lengths,
            page_indptr=plan.page_indptr,
            page_indices=plan.page_indices,
            shared=plan.shared,
        )
        staged = self._attention.staged
        form, arrays = (None, []) if staged is None else staged.prepare(inputs)
        orders = [(order.source, order.destination, order.n) for order in plan.copies]
        copies = np.array(orders, np.int32).reshape(-1)
        arrays = [*self._common(plan, rows, pool_arrays(plan), _positions(plan)), *arrays, copies]
        chosen = wanted_tokens(plan.lengths, wanted_lengths(plan))
        arrays.append(np.zeros(0, np.int32) if chosen is None else chosen.astype(np.int32))
        *tensors, copied, wanted = self._staging.put(arrays)
        placed = place(tensors)
        if len(copied):
            self._operations.copy_pages(self._kv_pool, copied)
        if staged is None:
            self._attention.plan(inputs)
        return placed, self._forward(placed, form, None if chosen is None else wanted)

    def _replay(self, plan: StepPlan, rows: Int32, size: int) -> tuple[Placed, torch.Tensor] | None:
        largest = self.graphs.sizes[-1]
        if self.graphs.is_empty and size != largest:
            self._captured(plan, rows, largest)
        found = self._captured(plan, rows, size)
        if found is None:
            return None
        placed, graph = found
        graph.replay()
        return placed, graph.output

    def _captured(self, plan: StepPlan, rows: Int32, size: int) -> tuple[Placed, Graph] | None:
        """The step's arrays in their places, and the graph that reads them; None where graphs.py
        says that it runs eagerly."""
        staged = self._attention.staged
        assert staged is not None
        form, arrays = staged.prepare(padded_inputs(plan, size, self._scratch))
        longest = max(len(array) for array in arrays[:-1])
        if longest > array_room(self._slots) or not self.graphs.has(size, form):
            return None
        ids, slots = pool_arrays(plan)
        pool = padded(ids, size, 0), padded(slots, size, self._pool.scratch)
        common = self._common(plan, rows, pool, padded(plan.positions, size, 0))
        placed = place(self._places(len(arrays)).put([*common, *arrays]))
        return placed, self.graphs.get(size, form, lambda: self._forward(placed, form))

    def _places(self, arrays: int) -> Staging:
        """Where the steps of forms with so many arrays lie."""
        if arrays not in self._fixed:
            common = [(self._slots + 1) * ROW_BYTES] * COMMON
            attention = [4 * array_room(self._slots)] * (arrays - 1)
            self._fixed[arrays] = Staging(self._device, [*common, *attention, INDEX_BYTES])
        return self._fixed[arrays]

    def _common(
        self, plan: StepPlan, rows: Int32, pool: tuple[Int32, Int32], positions: Int32
    ) -> list[npt.NDArray[Any]]:
        last = _last_wanted(plan)
        needs_uniform = self._operations.needs_uniform
        slots = plan.slots[rows]
        draws = draw_arrays(slots, plan.samples[rows], self._sampling, needs_uniform=needs_uniform)
        return [*pool, positions, last[rows], slots, *draws]

    def _forward(
        self, placed: Placed, form: Hashable, wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self._attention.staged is not None:
            self._attention.staged.bind(form, placed.attention)
        ids = self._pool.read(placed.ids, placed.slots)
        ctx = ForwardContext(placed.positions, self._attention, self._layers, wanted)
        return self._model.forward(ids, ctx)

    # ---- the draw ----

    @torch.inference_mode()
    def draw(
        self, plan: StepPlan, rows: Int32, placed: Placed, hidden: torch.Tensor, mask: Bits | None
    ) -> Drawn:
        """Queue logits, edits, mask, draw and the way of the ids to the host."""
        slots = plan.slots[rows]
        with naming_memory():
            logits = self._model.logits(hidden.index_select(0, placed.last))
            order = order_logprobs(slots, self._sampling)
            raw = None
            if order is not None:
                raw = logits.index_select(0, moved(order.rows, logits.device))
            self._edit(logits, slots, plan.samples[rows], mask)
            ids = self._operations.draw(logits[:, : self._sampling.valid_ids], placed.draws)
        self._pool.write(placed.sampled, ids)
        host = self._ids_cpu[self._steps % RESULTS][: len(rows)]
        self._steps += 1
        self._device.fetch(ids, host)
        # Held as objects: a slot may be another request's by the time the ids are here.
        seen = [(i, self._sampling.seen.get(SlotId(slot))) for i, slot in enumerate(slots.tolist())]
        counted = [(index, tokens) for index, tokens in seen if tokens is not None]
        return Drawn(host, self._device.event(), order, raw, counted)

    def _edit(self, logits: torch.Tensor, slots: Int32, samples: Int32, mask: Bits | None) -> None:
        penalise(logits, slots, self._sampling)
        if mask is not None:
            valid_ids = self._sampling.valid_ids
            words = packed(mask, valid_ids)
            (bits,) = self._masks.put([words.reshape(-1)])
            self._operations.mask(logits[:, :valid_ids], bits.view(words.shape))
        hold_back_stops(logits, slots, samples, self._sampling, is_masked=mask is not None)

    # ---- the result ----

    @torch.inference_mode()
    def collect(
        self, plan: StepPlan, rows: Int32, hidden: torch.Tensor, drawn: Drawn | None
    ) -> StepResult:
        """Wait for what was drawn. Raises RadixServeError where memory runs out."""
        with naming_memory():
            return self._collected(plan, rows, hidden, drawn)

    def _collected(
        self, plan: StepPlan, rows: Int32, hidden: torch.Tensor, drawn: Drawn | None
    ) -> StepResult:
        ids = np.zeros(0, np.int32)
        logprobs: dict[int, TokenLogprobs] = {}
        valid_ids = self._sampling.valid_ids
        if drawn is not None:
            drawn.event.wait()
            ids = drawn.ids_cpu.numpy().copy()
            refuse_rows(np.flatnonzero(ids < 0))
            for index, tokens in drawn.counted:
                tokens.add(int(ids[index]))
            if drawn.order is not None and drawn.raw is not None:
                chosen = ids[drawn.order.rows]
                found = told_logprobs(drawn.order, drawn.raw, chosen, valid_ids)
                logprobs = {int(rows[index]): values for index, values in found.items()}
        last = _last_wanted(plan)
        return StepResult(
            step=plan.step,
            rows=rows,
            ids=ids,
            logprobs=logprobs,
            scores=tuple(scores(plan, last, hidden, self._model.logits, valid_ids)),
            hidden=tuple(hidden_sums(plan, last, hidden)),
        )


@dataclass(frozen=True, slots=True)
class Drawn:
    """ids_cpu: [k] int32, pinned, valid once the event is done. order, raw: the log-probabilities
    asked for, and the logits of those rows as the model gave them. counted: what penalties look at,
    by index of the sampling row."""

    ids_cpu: torch.Tensor
    event: Event
    order: LogprobOrder | None
    raw: torch.Tensor | None
    counted: list[tuple[int, SeenTokens]]


class DeviceStep:
    """A launched step."""

    __slots__ = ("_drawn", "_executor", "_hidden", "_placed", "_plan", "_rows")

    def __init__(
        self,
        executor: DeviceExecutor,
        plan: StepPlan,
        rows: Int32,
        placed: Placed,
        hidden: torch.Tensor,
    ) -> None:
        self._executor = executor
        self._plan = plan
        self._rows = rows
        self._placed = placed
        self._hidden = hidden
        self._drawn: Drawn | None = None

    def sample(self, mask: Bits | None = None) -> None:
        """Queue the draw. mask: legal ids of each sampling row, see sampling.edits.edited."""
        if len(self._rows):
            parts = self._plan, self._rows, self._placed, self._hidden
            self._drawn = self._executor.draw(*parts, mask)

    def result(self) -> StepResult:
        """What was drawn, on the host; after sample(). Waits for this step alone."""
        assert self._drawn is not None or not len(self._rows), "sample() comes before result()"
        return self._executor.collect(self._plan, self._rows, self._hidden, self._drawn)


def _positions(plan: StepPlan) -> Int32:
    """Of every token: positions [4, 9], lengths [2, 1] give [4, 5, 9]."""
    starts = np.cumsum(plan.lengths) - plan.lengths
    within = np.arange(plan.tokens) - np.repeat(starts, plan.lengths)
    return (np.repeat(plan.positions, plan.lengths) + within).astype(np.int32)


def _last_wanted(plan: StepPlan) -> Int32:
    """Of each row, the place of its last token among those whose hidden states are wanted."""
    return (np.cumsum(wanted_lengths(plan)) - 1).astype(np.int32)


def packed(mask: Bits, valid_ids: int) -> Int32:
    """The mask as int32 words, [k, ceil(valid_ids / 32)]; see sampling.edits.edited."""
    if mask.dtype == np.int32:
        return np.ascontiguousarray(mask[:, : -(-valid_ids // 32)])
    legal = np.zeros((len(mask), -(-valid_ids // 32) * 32), np.bool_)
    legal[:, :valid_ids] = mask[:, :valid_ids]
    return np.packbits(legal, axis=1, bitorder="little").view(np.int32)


@contextlib.contextmanager
def naming_memory() -> Iterator[None]:
    """Around device work: running out of memory names the settings that matter."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RadixServeError(
            "the GPU has no memory left for this step: lower --memory-share (or --kv-tokens), "
            f"--token-budget or --max-running ({str(error).splitlines()[0]})"
        ) from error
