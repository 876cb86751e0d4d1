"""What a request's trail tells, and what the metrics make of it."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from radixserve.metrics.prometheus import Metrics, Observation
from radixserve.metrics.trail import Counts, Origin, Subject, Trail


def trail_of(metrics: Metrics, outputs: int = 1, **origin) -> Trail:
    return Trail(Subject(rid="r", outputs=outputs, origin=Origin(**origin)), [metrics], 100.0)


def counts(prompt: int = 10, completion: int = 0, cached: int = 0, **more) -> Counts:
    return Counts(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        computed_tokens=prompt - cached,
        **more,
    )


def scraped(metrics: Metrics, key: str | None = None) -> dict[str, float]:
    """Samples by name, and by name{label=value} where a label other than `key` tells them apart."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.scrape()[0].decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            if key is not None and labels.pop("key", key) != key:
                continue
            labels.pop("key", None)
            name = sample.name.removeprefix("radixserve_")
            tail = ",".join(f"{k}={v}" for k, v in sorted(labels.items()))
            name = f"{name}{{{tail}}}" if tail else name
            found[name] = found.get(name, 0) + sample.value
    return found


def test_times_of_one_output() -> None:
    metrics = Metrics()
    trail = trail_of(metrics)
    trail.tokens(0, 1, 100.5)
    trail.tokens(0, 1, 100.6)
    trail.tokens(0, 4, 101.0)  # 4 tokens in 0.4 s
    trail.end(0, "length", counts(completion=6, queue_seconds=0.25), 101.0)
    seen = scraped(metrics)
    assert seen["time_to_first_token_seconds_sum"] == pytest.approx(0.5)
    assert seen["time_to_first_token_seconds_count"] == 1
    assert seen["inter_token_latency_seconds_count"] == 5
    assert seen["inter_token_latency_seconds_sum"] == pytest.approx(0.5)
    assert seen["e2e_request_latency_seconds_sum"] == pytest.approx(1.0)
    assert seen["request_queue_time_seconds_sum"] == pytest.approx(0.25)
    assert seen["requests_total{outcome=length}"] == 1


def test_tokens_that_are_told_together_have_times_of_their_own() -> None:
    metrics = Metrics()
    trail = trail_of(metrics)
    trail.tokens(0, 5, 103.0, 2.0)
    trail.tokens(0, 4, 105.0, 1.5)
    assert (trail.first, trail.last, trail.produced) == (101.0, 105.0, 9)
    seen = scraped(metrics)
    assert seen["time_to_first_token_seconds_sum"] == pytest.approx(1.0)
    assert seen["inter_token_latency_seconds_count"] == 8
    assert seen["inter_token_latency_seconds_sum"] == pytest.approx(4.0)


def test_a_gap_falls_into_every_bucket_that_holds_it() -> None:
    metrics = Metrics()
    trail = trail_of(metrics)
    for now in (100.0, 100.5, 101.5, 201.5):  # gaps of 0.5, 1 and 100 s
        trail.tokens(0, 1, now)
    seen = scraped(metrics)
    name = "inter_token_latency_seconds_bucket"
    found = {le: seen[f"{name}{{le={le}}}"] for le in ("0.25", "0.5", "1.0", "2.5", "+Inf")}
    assert found == {"0.25": 0, "0.5": 1, "1.0": 2, "2.5": 2, "+Inf": 3}


def test_outputs_of_one_request_count_its_prompt_once() -> None:
    metrics = Metrics()
    trail = trail_of(metrics, outputs=3)
    for index in range(3):
        trail.tokens(index, 2, 101.0 + index)
    trail.end(1, "stop", counts(completion=2, cached=9), 104.0)
    trail.end(0, "length", counts(completion=2, cached=3), 104.0)
    assert "requests_total{outcome=length}" not in scraped(metrics)
    trail.end(2, "stop", counts(completion=2, cached=9), 105.0)
    seen = scraped(metrics)
    assert seen["prompt_tokens_total"] == 10
    assert seen["cached_tokens_total"] == 3
    assert seen["generation_tokens_total"] == 6
    assert seen["time_to_first_token_seconds_count"] == 1
    assert seen["requests_total{outcome=length}"] == 1


def test_tokens_that_came_after_the_client_left_are_made_up_for() -> None:
    metrics = Metrics()
    trail = trail_of(metrics)
    trail.tokens(0, 2, 101.0)
    assert scraped(metrics)["generation_tokens_total"] == 2
    trail.cause = "client"
    trail.end(0, "abort", counts(completion=5), 102.0)
    seen = scraped(metrics)
    assert seen["generation_tokens_total"] == 5
    assert seen["aborts_total{cause=client}"] == 1


def test_a_lost_engine_ends_a_trail_once() -> None:
    metrics = Metrics()
    trail = trail_of(metrics, outputs=2)
    trail.end(0, "stop", counts(completion=0), 101.0)
    trail.lose(102.0)
    trail.lose(103.0)
    seen = scraped(metrics)
    assert seen["requests_total{outcome=error}"] == 1
    assert seen["aborts_total{cause=engine}"] == 1


def test_probes_are_not_counted() -> None:
    metrics = Metrics()
    trail = trail_of(metrics, counted=False)
    trail.tokens(0, 1, 101.0)
    trail.end(0, "length", counts(completion=1), 101.0)
    assert not [name for name, value in scraped(metrics).items() if "token" in name and value]


def test_keys_have_series_of_their_own_and_any_name() -> None:
    metrics = Metrics()
    for name, tokens in (("a", 3), ('b"\\\n}', 4)):
        trail = trail_of(metrics, tenant=name)
        trail.end(0, "stop", counts(prompt=tokens), 101.0)
    assert scraped(metrics, "a")["prompt_tokens_total"] == 3
    assert scraped(metrics, 'b"\\\n}')["prompt_tokens_total"] == 4


def test_an_engines_counters_go_on_across_its_restarts() -> None:
    metrics = Metrics()
    gauges = {"steps": 5, "running": 2}
    metrics.watch(lambda: Observation(True, 0, gauges))
    assert scraped(metrics)["engine_steps_total"] == 5
    metrics.restarted_engine({"steps": 9})
    gauges = {"steps": 6, "running": 1}
    seen = scraped(metrics)
    assert seen["engine_steps_total"] == 15
    assert seen["engine_restarts_total"] == 1
    assert scraped(metrics)["num_requests_running"] == 1


def test_what_a_scraper_asks_for() -> None:
    metrics = Metrics()
    plain, kind = metrics.scrape()
    assert kind.startswith("text/plain")
    assert b"# EOF" not in plain
    open_metrics, kind = metrics.scrape("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert open_metrics.endswith(b"# EOF\n")
