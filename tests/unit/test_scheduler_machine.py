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

from radixserve.wire.messages import FinishReason, ProgramEnd, ProgramRef
from tests.engine_driver import EngineDriver
from tests.fake_executor import expected

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=22)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        pages=st.integers(8, 24),
        policy=st.sampled_from(["lpm", "fcfs", "program"]),
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
            program_overtakes=3,
            max_programs=2,
        )
        self.driver.cache.keep_for_programs(0.4 if policy == "program" else 0.0, 5.0, self.seconds)
        self.calls = 0
        self.prompts: dict[str, list[int]] = {}
        self.wanted: dict[str, int] = {}
        self.failures = 0
        self.now = 0.0

    def seconds(self) -> float:
        return self.now

    def reference(self, program: str, parent: str) -> ProgramRef | None:
        """The next call of a program; None for a call of none."""
        self.calls += 1
        return ProgramRef(program, str(self.calls), parent) if program else None

    @rule(
        prompt=tokens,
        max_new=st.integers(0, 9),
        priority=st.integers(0, 1),
        program=st.sampled_from(["", "p", "q", "r", "s"]),
    )
    def submit(self, prompt, max_new, priority, program) -> None:
        ref = self.reference(program, "")
        rid = self.driver.submit(prompt, max_new=max_new, priority=priority, program=ref)
        self.prompts[rid], self.wanted[rid] = prompt, max_new

    @precondition(lambda self: self.prompts)
    @rule(
        data=st.data(),
        more=tokens,
        max_new=st.integers(0, 9),
        limit=st.booleans(),
        program=st.sampled_from(["", "p", "q", "r", "s"]),
    )
    def extend(self, data, more, max_new, limit, program) -> None:
        """A prompt that begins like another one's prompt and output, perhaps with scores."""
        base = data.draw(st.sampled_from(sorted(self.prompts)))
        prompt = (self.prompts[base] + self.driver.output(base) + more)[:40]
        fields = {}
        if limit:
            fields = {
                "prompt_logprobs": 0,
                "prompt_logprobs_start": data.draw(st.integers(1, len(prompt))),
            }
        ref = self.reference(program, str(data.draw(st.integers(0, self.calls))))
        rid = self.driver.submit(prompt, max_new=max_new, program=ref, **fields)
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

    @rule(seconds=st.sampled_from([1.0, 10.0]), program=st.sampled_from("pqrs"))
    def time_passes_or_a_program_ends(self, seconds, program) -> None:
        self.now += seconds
        if seconds == 1.0:
            self.driver.channel.down.append(self.driver.encoded(ProgramEnd(program)))

    @rule()
    def flush(self) -> None:
        self.driver.cache.flush()

    @invariant()
    def budget_kept(self) -> None:
        if hasattr(self, "driver"):
            for plan in self.driver.executor.steps[-5:]:
                assert plan.tokens <= self.budget

    @invariant()
    def what_is_kept_is_bounded(self) -> None:
        if hasattr(self, "driver"):
            retention = self.driver.cache.retention
            assert 0 <= retention.pages <= retention.limit

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
        programs = self.driver.scheduler._waiting.programs
        assert programs is None or len(programs) <= 2
        self.driver.no_leak()
        assert self.driver.cache.retention.pages == 0


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(stateful_step_count=30)
