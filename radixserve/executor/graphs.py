"""Which graph serves a pure decode step, and what fills it up.

Owns: the sizes that are captured, the captured graphs, the rows of padding. Must not know: how a
device captures, models.

A decode step whose rows share prefixes is served like any other: its backend pads the work to few
sizes, which are part of the form. It runs eagerly where an array of it has more than `array_room`
numbers (many short groups on few rows), where its page tables are longer than graphs have room for,
and where MOST_GRAPHS other graphs are there already.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
import torch

from radixserve.attention.base import AttentionInputs
from radixserve.executor.device import Device, Graph
from radixserve.plan import Int32, Output, PageId, StepPlan


def graph_sizes(max_running: int) -> tuple[int, ...]:
    """Rows of the graphs, ascending: 1, 2, 4, 8, 16 and on in steps of 16, up to max_running.

    max_running 40: (1, 2, 4, 8, 16, 32, 40).
    """
    small = [size for size in (1, 2, 4, 8) if size < max_running]
    return (*small, *range(16, max_running, 16), max_running)


MOST_GRAPHS = 256
NUMBERS_A_ROW, NUMBERS_MORE = 8, 64


def array_room(rows: int) -> int:
    """Numbers that an array of attention may have in a graph's step of up to so many rows."""
    return NUMBERS_A_ROW * rows + NUMBERS_MORE


def is_pure_decode(plan: StepPlan) -> bool:
    """One token a row, nothing asked but samples, no pages to copy (a prompt may be cached but for
    its last token)."""
    if plan.scores or plan.hidden or plan.copies or not plan.rows:
        return False
    return bool((plan.lengths == 1).all() and (plan.outputs == Output.SAMPLE).all())


def padded(array: Int32, size: int, value: int) -> Int32:
    """The array with `value` behind it, up to `size`."""
    more = np.full(size - len(array), value, np.int32)
    return np.concatenate((array, more)).astype(np.int32)


def padded_inputs(plan: StepPlan, size: int, scratch: PageId) -> AttentionInputs:
    """The rows of a decode step and rows of one token in the scratch page, up to `size`.

    All of those write the same place, which nobody reads for a request.
    """
    more = size - plan.rows
    indptr = plan.page_indptr[-1] + np.arange(1, more + 1, dtype=np.int32)
    indices = np.full(more, scratch, np.int32)
    return AttentionInputs(
        positions=padded(plan.positions, size, 0),
        lengths=np.ones(size, np.int32),
        page_indptr=np.concatenate((plan.page_indptr, indptr)).astype(np.int32),
        page_indices=np.concatenate((plan.page_indices, indices)).astype(np.int32),
        shared=plan.shared,
    )


class GraphStore:
    """Graphs by size and attention form, each captured when it is first wanted.

    The largest size is captured first: the others then find the memory they need in its pool.
    """

    def __init__(self, device: Device, sizes: tuple[int, ...], most: int = MOST_GRAPHS) -> None:
        self._device = device
        self._most = most
        self.sizes = sizes
        self._graphs: dict[tuple[int, Hashable], Graph] = {}

    def size_for(self, rows: int) -> int | None:
        """The least size that holds the rows; None where none does."""
        return next((size for size in self.sizes if size >= rows), None)

    @property
    def is_empty(self) -> bool:
        return not self._graphs

    def __len__(self) -> int:
        return len(self._graphs)

    def has(self, size: int, form: Hashable) -> bool:
        """Whether get gives a graph: it is there, or there is room for it."""
        return (size, form) in self._graphs or len(self._graphs) < self._most

    def get(self, size: int, form: Hashable, run: Callable[[], torch.Tensor]) -> Graph:
        """The graph, captured from `run` where it is new. run reads tensors that stay in place."""
        key = (size, form)
        if key not in self._graphs:
            self._graphs[key] = self._device.capture(run)
        return self._graphs[key]
