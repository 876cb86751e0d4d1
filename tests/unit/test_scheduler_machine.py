"""A state machine over the whole deciding half: loop, scheduler and cache, with a fake executor.

Whatever is submitted, aborted or made to fail, in any order: every request gets one terminal
message, its output is what its prompt says, the budget is kept, and all pages come back.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from radixserve.wire.messages import FinishReason
from tests.engine_driver import EngineDriver
from tests.fake_executor import expected

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=22)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        pages=st.integers(8, 24),
        policy=st.sampled_from(["lpm", "fcfs"]),
        overlap=st.booleans(),
        reserve=st.sampled_from([0.0, 0.5]),
        max_running=st.integers(1, 4),
    )
    def start(self, page_size, pages, policy, overlap, reserve, max_running) -> None:
        self.budget = max_running + 2 * page_size
        self.driver = EngineDriver(
            pages=pages,
            page_size=page_size,
            vocab=3,
            overlap=overlap,
            policy=policy,
            reserve=reserve,
            max_running=max_running,
            token_budget=self.budget,
            chunk=2 * page_size,
            max_overtakes=3,
        )
        self.prompts: dict[str, list[int]] = {}
        self.wanted: dict[str, int] = {}
        self.failures = 0

    @rule(prompt=tokens, max_new=st.integers(0, 9), priority=st.integers(0, 1))
    def submit(self, prompt, max_new, priority) -> None:
        rid = self.driver.submit(prompt, max_new=max_new, priority=priority)
        self.prompts[rid], self.wanted[rid] = prompt, max_new

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), more=tokens, max_new=st.integers(0, 9), limit=st.booleans())
    def extend(self, data, more, max_new, limit) -> None:
        """A prompt that begins like another one's prompt and output, perhaps with scores."""
        base = data.draw(st.sampled_from(sorted(self.prompts)))
        prompt = (self.prompts[base] + self.driver.output(base) + more)[:40]
        fields = {}
        if limit:
            fields = {
                "prompt_logprobs": 0,
                "prompt_logprobs_start": data.draw(st.integers(1, len(prompt))),
            }
        rid = self.driver.submit(prompt, max_new=max_new, **fields)
        self.prompts[rid], self.wanted[rid] = prompt, max_new

    @precondition(lambda self: self.prompts)
    @rule(data=st.data())
    def abort(self, data) -> None:
        self.driver.abort(data.draw(st.sampled_from(sorted(self.prompts))))

    @rule(turns=st.integers(1, 5))
    def turn(self, turns) -> None:
        for _ in range(turns):
            self.driver.turn()

    @rule(where=st.sampled_from(["launch", "sample"]))
    def fail(self, where) -> None:
        self.failures += 1
        self.driver.executor.fail_next = where
        self.driver.turn()

    @rule()
    def flush(self) -> None:
        self.driver.cache.flush()

    @invariant()
    def budget_kept(self) -> None:
        if hasattr(self, "driver"):
            for plan in self.driver.executor.steps[-5:]:
                assert plan.tokens <= self.budget

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.executor.fail_next = None
        self.driver.run(5000)
        for rid, prompt in self.prompts.items():
            end = self.driver.finished(rid)
            out = self.driver.output(rid)
            assert out == expected(prompt, len(out), 3)
            if end.reason is FinishReason.LENGTH:
                room = self.driver.cache.total_pages * self.driver.cache.page_size - len(prompt)
                assert len(out) == min(self.wanted[rid], room)
            elif end.reason is FinishReason.ERROR:
                assert self.failures or end.code == "context_length_exceeded"
            else:
                assert end.reason is FinishReason.ABORT
        self.driver.no_leak()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
