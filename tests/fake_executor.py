"""FakeExecutor: an executor whose "model" is a hash chain kept in simulated KV memory.

Every token's K and V are stood in for by the hash of the whole prefix up to it. A row reads the
hash before its first token from the page table that the plan gives it, extends it token by token,
and stores the result into its pages; the sampled id is a function of the last hash. So any page
that is stale, recycled, swapped wrongly or copied too early changes the output, and expected()
says what it should have been.
"""

from __future__ import annotations

import zlib

import numpy as np

from radixserve.plan import Output, StepPlan, StepResult, TokenLogprobs

ROOT = 17


def chain(before: int, token: int) -> int:
    return zlib.crc32(b"%d,%d" % (before, token))


def draw(state: int, vocab: int) -> int:
    return zlib.crc32(b"draw%d" % state) % vocab


def legal(words: np.ndarray, vocab: int) -> list[int]:
    """The ids of a mask row."""
    bits = np.unpackbits(words.view(np.uint8), count=vocab, bitorder="little")
    return np.flatnonzero(bits).tolist()


def draw_legal(state: int, ids: list[int]) -> int:
    return ids[draw(state, len(ids))]


def expected(prompt: list[int], n: int, vocab: int) -> list[int]:
    """The n tokens that follow prompt."""
    state = ROOT
    for token in prompt:
        state = chain(state, token)
    out: list[int] = []
    for _ in range(n):
        out.append(draw(state, vocab))
        state = chain(state, out[-1])
    return out


class FakeStep:
    def __init__(self, executor: FakeExecutor, plan: StepPlan, states: list[list[int]]) -> None:
        self._executor = executor
        self._plan = plan
        self._states = states
        self._result: StepResult | None = None

    def sample(self, mask: np.ndarray | None = None) -> None:
        self._executor.maybe_fail("sample")
        plan = self._plan
        rows = np.flatnonzero(plan.outputs == Output.SAMPLE).astype(np.int32)
        states = [self._states[row][-1] for row in rows]
        ids = np.asarray(
            [draw(state, self._executor.vocab) for state in states]
            if mask is None
            else [
                draw_legal(state, legal(words, self._executor.vocab))
                for state, words in zip(states, mask)
            ],
            np.int32,
        )
        for row, token in zip(rows, ids):
            self._executor.last_ids[int(plan.slots[row])] = int(token)
        self._result = StepResult(
            step=plan.step,
            rows=rows,
            ids=ids,
            scores=tuple(map(self._score, plan.scores)),
            hidden=tuple(map(self._hidden, plan.hidden)),
        )

    def _score(self, order) -> TokenLogprobs:
        """The "log-probability" of a target is minus the hash of the prefix before it."""
        first = order.first - int(self._plan.positions[order.row])
        states = self._states[order.row][first : first + len(order.targets)]
        n = len(order.targets)
        assert len(states) == n
        return TokenLogprobs(
            np.asarray([-float(state % 1000) for state in states], np.float32),
            np.zeros((n, 0), np.int32),
            np.zeros((n, 0), np.float32),
        )

    def _hidden(self, order) -> np.ndarray:
        """The "hidden state" of a token is the hash of the prefix that ends with it."""
        assert self._plan.outputs[order.row] == Output.HIDDEN
        first = order.first - int(self._plan.positions[order.row])
        states = self._states[order.row][first:]
        return np.asarray([sum(states), len(states)], np.float64)

    def result(self) -> StepResult:
        assert self._result is not None
        return self._result


class FakeExecutor:
    """computed: tokens computed so far. fail_next: raise at the next launch or sample."""

    def __init__(self, pages: int, page_size: int, vocab: int) -> None:
        self.vocab = vocab
        self.page_size = page_size
        self.memory = np.full((pages, page_size), -1, np.int64)
        self.last_ids: dict[int, int] = {}
        self.open_slots: set[int] = set()
        self.computed = 0
        self.steps: list[StepPlan] = []
        self.fail_next: str | None = None

    def maybe_fail(self, where: str) -> None:
        if self.fail_next == where:
            self.fail_next = None
            raise RuntimeError(f"injected at {where}")

    def launch(self, plan: StepPlan) -> FakeStep:
        self.maybe_fail("launch")
        self.steps.append(plan)
        for slot in plan.closed:
            self.open_slots.discard(slot)
        for opened in plan.opened:
            self.open_slots.add(opened.slot)
        self._copy(plan)
        states = []
        written: set[tuple[int, int]] = set()
        start = 0
        for row in range(plan.rows):
            n = int(plan.lengths[row])
            ids = plan.ids[start : start + n].tolist()
            start += n
            if plan.from_last[row]:
                ids = [self.last_ids[int(plan.slots[row])]]
            states.append(self._compute(plan, row, ids, written))
        self.computed += plan.tokens
        return FakeStep(self, plan, states)

    def _copy(self, plan: StepPlan) -> None:
        read = [self.memory[order.source, : order.n].copy() for order in plan.copies]
        for order, values in zip(plan.copies, read):
            assert (values >= 0).all(), "a copy reads what nobody has written"
            self.memory[order.destination, : order.n] = values

    def _compute(
        self, plan: StepPlan, row: int, ids: list[int], written: set[tuple[int, int]]
    ) -> list[int]:
        assert int(plan.slots[row]) in self.open_slots
        pages = plan.page_indices[plan.page_indptr[row] : plan.page_indptr[row + 1]]
        position = int(plan.positions[row])
        assert len(pages) == -(-(position + len(ids)) // self.page_size)
        state = ROOT
        if position:
            state = int(self.memory[self._at(pages, position - 1)])
            assert state >= 0, "a row attends to what nobody has written"
        states = []
        for offset, token in enumerate(ids):
            state = chain(state, token)
            place = self._at(pages, position + offset)
            assert place not in written, "two rows write one place"
            written.add(place)
            self.memory[place] = state
            states.append(state)
        return states

    def _at(self, pages, position: int) -> tuple[int, int]:
        return int(pages[position // self.page_size]), position % self.page_size
