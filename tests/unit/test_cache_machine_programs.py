"""The world of test_cache_machine, where what ends is kept for programs for a while."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.cache_steps import Running
from tests.unit import test_cache_machine as machine


class WorldOfPrograms(machine.World):
    """Three programs in each namespace; half of the pool, three seconds."""

    page_size = 2

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.calls = 0
        self.cache.keep_for_programs(0.5, 3.0, lambda: self.now)

    def release(self, req: Running) -> None:
        owner = (req.namespace, f"p{len(req.tokens) % 3}")
        self.calls += 1
        self.cache.retention.keep(req.lease, owner, str(self.calls), str(self.calls - 3))
        self.after_verb()
        super().release(req)

    @rule(seconds=st.sampled_from([0, 1, 5]), program=st.integers(0, 2))
    def pass_time(self, seconds, program) -> None:
        self.now += seconds
        if not seconds:
            self.cache.retention.forget(("", f"p{program}"))

    @invariant()
    def a_bounded_share_is_kept(self) -> None:
        assert 0 <= self.cache.retention.pages <= machine.PAGES // 2

    def teardown(self) -> None:
        super().teardown()
        assert self.cache.retention.pages == len(self.cache.retention) == 0


TestPrograms = WorldOfPrograms.TestCase
TestPrograms.settings = settings(machine._SETTINGS, max_examples=settings.default.max_examples)
