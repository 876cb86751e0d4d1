"""What the engine says of the cache, over real scheduler and loop."""

from __future__ import annotations

from radixserve.wire import codec
from radixserve.wire.messages import Control, ControlReply
from tests.engine_driver import EngineDriver


def explained(driver: EngineDriver, prompt, **fields):
    rid = driver.submit(prompt, explain=True, **fields)
    driver.run()
    report = driver.finished(rid).cache
    assert report is not None
    return report, driver.finished(rid)


def test_a_request_is_told_where_its_match_ended() -> None:
    driver = EngineDriver(pages=16, page_size=4)
    report, finished = explained(driver, [1] * 10)
    assert (report.matched, report.reason, report.other) == (0, "never", None)
    report, finished = explained(driver, [1] * 6 + [2] * 4)
    assert (report.matched, report.reason, report.other) == (6, "never", 1)
    assert finished.cached_tokens == 6
    report, _ = explained(driver, [1] * 6 + [2] * 4, namespace="other")
    assert (report.matched, report.reason, report.other) == (0, "never", None)
    report, _ = explained(driver, [1] * 6 + [2] * 4, prompt_logprobs=0, prompt_logprobs_start=3)
    assert (report.matched, report.reason) == (2, "limit")
    report, _ = explained(driver, [1] * 6 + [2] * 4)
    assert (report.matched, report.reason) == (9, "whole")
    driver.no_leak()
    report, _ = explained(driver, [1] * 6 + [2] * 4)
    assert (report.matched, report.reason, report.lost) == (0, "flushed", 8)


def test_nothing_is_told_unless_asked() -> None:
    driver = EngineDriver()
    rid = driver.submit([1, 2, 3])
    driver.run()
    assert driver.finished(rid).cache is None


def test_what_an_admission_itself_evicts_is_told_as_it_was_before() -> None:
    driver = EngineDriver(pages=4, page_size=4)
    driver.submit([1] * 12, max_new=1)
    driver.run()
    report, _ = explained(driver, [2] * 12, max_new=1)
    assert (report.matched, report.other) == (0, 1)
    report, _ = explained(driver, [1] * 12, max_new=1)
    assert (report.matched, report.reason, report.lost) == (4, "evicted", 7)


def test_a_sister_of_the_same_step_is_told_that_it_waits_for_a_whole_page() -> None:
    driver = EngineDriver(pages=32, page_size=4)
    driver.submit([1, 1, 1, 1, 2])
    rid = driver.submit([1, 1, 3, 3, 3], explain=True)
    driver.run()
    report = driver.finished(rid).cache
    assert report is not None
    assert (report.matched, report.reason) == (0, "pending")


def test_a_retracted_request_keeps_the_report_of_its_first_admission() -> None:
    driver = EngineDriver(pages=9, page_size=2, reserve=0.0)
    rids = [driver.submit([k] * 4, max_new=10, explain=True) for k in range(3)]
    driver.run()
    assert driver.scheduler.gauges().retractions > 0
    for rid in rids:
        report = driver.finished(rid).cache
        assert report is not None
        assert (report.matched, report.reason) == (0, "never")


def test_warm_prompts_outlive_others() -> None:
    for warm in (True, False):
        driver = EngineDriver(pages=16, page_size=4, vocab=9)
        driver.submit([1] * 16, max_new=0, warm=warm)
        driver.run()
        for k in range(2, 8):
            driver.submit([k] * 20, max_new=1)
            driver.run()
        report, _ = explained(driver, [1] * 16 + [2])
        assert report.matched == (16 if warm else 0)
        driver.no_leak()


def test_control_tells_the_state_of_the_cache() -> None:
    driver = EngineDriver(pages=16, page_size=4)
    driver.submit([1] * 9, max_new=0)
    driver.run()
    driver.channel.down.append(codec.encode([Control("a", "cache", None, 3, 10)]))
    driver.channel.down.append(codec.encode([Control("b", "stats")]))
    driver.turn()
    first, second = (e for e in driver.channel.events if isinstance(e, ControlReply))
    assert first.cache is not None
    assert (first.cache.total, first.cache.evictable, first.cache.nodes) == (64, 12, 2)
    assert [(row.parent, row.tokens) for row in first.tree] == [(None, 0), (0, 8), (1, 1)]
    assert second.cache is None
    assert second.tree == []
