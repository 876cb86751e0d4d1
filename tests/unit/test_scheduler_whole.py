"""Outputs that are told as a whole, and requests that follow others at once."""

from __future__ import annotations

import pytest

from radixserve.scheduler.outputs import TOGETHER
from radixserve.wire import codec
from radixserve.wire.messages import FinishReason, Generate, TokenOut
from radixserve.wire.params import SamplingParams
from tests.engine_driver import EngineDriver, ListChannel
from tests.fake_executor import expected

PROMPT = [1, 2, 3, 4, 0]


def told(driver: EngineDriver, rid: str) -> list[TokenOut]:
    return [e for e in driver.channel.events if isinstance(e, TokenOut) and e.rid == rid]


@pytest.mark.parametrize("overlap", [False, True])
def test_tokens_are_told_together(overlap: bool) -> None:
    driver = EngineDriver(pages=128, overlap=overlap)
    whole = driver.submit(PROMPT, max_new=TOGETHER + 9, whole=True)
    piecewise = driver.submit([4, *PROMPT], max_new=9)
    driver.run()
    assert driver.output(whole) == expected(PROMPT, TOGETHER + 9, 5)
    first, second = told(driver, whole)
    assert (len(first.ids), len(second.ids)) == (TOGETHER, 9)
    assert (first.cached_tokens, second.cached_tokens) == (0, None)
    assert first.seconds > 0
    assert len(told(driver, piecewise)) == 9
    assert driver.finished(whole).completion_tokens == TOGETHER + 9
    driver.no_leak()


def test_an_abort_tells_what_there_is() -> None:
    driver = EngineDriver()
    rid = driver.submit(PROMPT, max_new=50, whole=True)
    for _ in range(4):
        driver.turn()
    assert not told(driver, rid)
    driver.abort(rid)
    driver.run()
    assert driver.finished(rid).reason is FinishReason.ABORT
    assert driver.output(rid) == expected(PROMPT, 4, 5)


def test_what_is_untold_outlasts_a_retraction() -> None:
    driver = EngineDriver(pages=10, max_running=3, token_budget=32, reserve=0.0)
    prompts = [[k, *PROMPT] for k in range(3)]
    rids = [driver.submit(prompt, max_new=16, whole=True) for prompt in prompts]
    driver.run()
    assert driver.scheduler.gauges().retractions
    for rid, prompt in zip(rids, prompts):
        assert driver.output(rid) == expected(prompt, 16, 5)
        assert len(told(driver, rid)) == 1


class LateChannel(ListChannel):
    """Its `late` frame comes to whoever waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.late: bytes | None = None
        self.waits = 0

    def drain(self, timeout: float | None) -> list[bytes]:
        self.waits += bool(timeout)
        if timeout and self.late is not None:
            self.down.append(self.late)
            self.late = None
        return super().drain(timeout)


@pytest.mark.parametrize("follows", [0, 1])
def test_a_step_waits_for_what_follows_at_once(follows: int) -> None:
    driver = EngineDriver()
    driver.channel = driver.loop._channel = LateChannel()
    other = driver.submit([3], max_new=8)
    driver.submit(PROMPT, max_new=2, follows=follows)
    driver.turn()
    driver.turn()  # the second has ended
    following = Generate(rid="next", prompt=b"\1\0\0\0", params=SamplingParams(max_new_tokens=2))
    driver.channel.late = codec.encode([following])
    driver.turn()
    assert bool(driver.output("next")) == bool(follows)
    assert driver.channel.waits == follows
    assert len(driver.output(other)) == 3
    driver.turn()
    assert driver.channel.waits == follows, "it waits once"


def test_no_step_of_many_waits_for_one() -> None:
    driver = EngineDriver(pages=128, max_running=20, token_budget=64)
    driver.channel = driver.loop._channel = LateChannel()
    for k in range(12):
        driver.submit([k % 5, 3], max_new=9)
    driver.submit(PROMPT, max_new=1, follows=1)
    for _ in range(3):
        driver.turn()
    assert driver.channel.waits == 0
