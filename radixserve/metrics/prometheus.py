"""Prometheus metrics of one front.

Owns: names, labels and buckets of every metric, and their text. Must not know: HTTP, the wire,
where the numbers come from.

Token counters are the sums of the usages that requests ended with, each prompt once however many
outputs it has; generated tokens grow as they come and agree at the end of each request. Counters
of the engine go on across its restarts.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from radixserve.metrics.trail import Trail

PREFIX = "radixserve"

disable_created_metrics()  # type: ignore[no-untyped-call]  # series that nobody asks for

_FIRST = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_BETWEEN = (
    0.002,
    0.005,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.06,
    0.08,
    0.1,
    0.15,
    0.25,
    0.5,
    1,
    2.5,
    5,
)
_WHOLE = (0.05, 0.1, 0.25, 0.5, 1, 1.5, 2.5, 5, 10, 15, 20, 30, 45, 60, 120, 240, 480, 960, 1920)
_QUEUED = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 240, 480)

# Field of the engine's gauges: (metric, what it is).
_ENGINE_GAUGES = {
    "running": ("num_requests_running", "Outputs that the engine is computing"),
    "waiting": ("num_requests_waiting", "Outputs that wait for pages or a slot"),
    "compiling": ("num_requests_compiling", "Outputs that wait for their grammar"),
    "step_seconds": ("step_seconds", "How long the step under way has taken"),
    "kv_tokens": ("kv_capacity_tokens", "Tokens that the KV pool holds"),
}
_KV_STATES = {"free": "free_tokens", "evictable": "evictable_tokens", "locked": "locked_tokens"}
_ENGINE_COUNTERS = {
    "steps": ("engine_steps", "Steps of the engine"),
    "evicted_tokens": ("evicted_tokens", "Cached tokens that were evicted for others"),
    "retractions": ("retractions", "Running outputs whose pages were taken back for a while"),
    "grammar_compiles": ("grammar_compiles", "Grammars compiled"),
    "grammar_compile_seconds": ("grammar_compile_seconds", "Seconds spent compiling grammars"),
    "grammar_cache_hits": ("grammar_cache_hits", "Requests whose grammar was compiled already"),
}


@dataclass(frozen=True, slots=True)
class Observation:
    """An engine at a glance. up: it is there and answers. in_flight: requests that have not ended.
    gauges: by the names of wire.messages.Gauges."""

    up: bool = False
    in_flight: int = 0
    gauges: Mapping[str, float] = field(default_factory=dict)


class Metrics:
    """All metrics of one front; a trail.Recorder. Label `key` is the name of the caller's key."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._engine = _Engine()
        self._observe: Callable[[], Observation] = Observation
        self._registry.register(self._engine)
        self._tokens = _Tokens()
        self._registry.register(self._tokens)
        self._tenants: dict[str, _Tenant] = {}
        self._families = _Families(self._registry)

    # ---- requests ----

    def produced(self, trail: Trail, count: int, gap: float | None) -> None:
        if not trail.subject.origin.counted:
            return
        tenant = self._tenant(trail)
        tenant.tokens.made += count
        if gap is not None:
            tenant.tokens.took(gap, count)
        elif trail.produced == count and trail.first is not None:
            tenant.first.observe(trail.first - trail.arrived)

    def ended(self, trail: Trail) -> None:
        if not trail.subject.origin.counted or trail.outcome is None:
            return
        tenant, totals = self._tenant(trail), trail.totals
        name = trail.subject.origin.tenant
        self._families.requests.labels(name, trail.outcome).inc()
        if trail.cause is not None and trail.outcome in ("abort", "timeout", "error"):
            self._families.aborts.labels(name, trail.cause).inc()
        tenant.prompt.inc(totals.prompt_tokens)
        tenant.cached.inc(totals.cached_tokens)
        tenant.computed.inc(totals.computed_tokens)
        tenant.forced.inc(totals.forced_tokens)
        tenant.tokens.made += max(0, totals.completion_tokens - trail.produced)
        tenant.whole.observe(trail.finished - trail.arrived)
        if totals.prompt_tokens:
            tenant.queued.observe(totals.queue_seconds)

    # ---- HTTP, the engine ----

    def responded(self, status: int) -> None:
        """A response with that HTTP status has begun."""
        self._families.responses.labels(str(status)).inc()

    def dropped_slow_reader(self) -> None:
        """A stream was closed because its client stopped reading."""
        self._families.slow_readers.inc()

    def restarted_engine(self, gauges: Mapping[str, float]) -> None:
        """There is a new engine; gauges: the last ones of the old."""
        self._families.restarts.inc()
        self._engine.retire(gauges)

    def describe(self, **labels: str) -> None:
        """What is served: labels of the metric build_info."""
        info = Gauge(f"{PREFIX}_build_info", "Always 1", list(labels), registry=self._registry)
        info.labels(**labels).set(1)

    def watch(self, engine: Callable[[], Observation]) -> None:
        """Ask `engine` at every scrape from now on."""
        self._observe = engine

    def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """(text, content type) for a scraper that accepts `accept`."""
        seen = self._observe()
        self._families.up.set(seen.up)
        self._families.in_flight.set(seen.in_flight)
        self._engine.take(seen.gauges)
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _tenant(self, trail: Trail) -> _Tenant:
        name = trail.subject.origin.tenant
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = _Tenant(name, self._families, self._tokens.of(name))
            self._tenants[name] = tenant
        return tenant


class _Families:
    """The metrics that the front itself counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, said: str, labels: Iterable[str] = ("key",)) -> Counter:
            return Counter(f"{PREFIX}_{name}", said, list(labels), registry=registry)

        def seconds(name: str, said: str, buckets: Iterable[float]) -> Histogram:
            name = f"{PREFIX}_{name}_seconds"
            return Histogram(name, said, ["key"], buckets=list(buckets), registry=registry)

        def gauge(name: str, said: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", said, registry=registry)

        self.first = seconds("time_to_first_token", "From a request's arrival to a token", _FIRST)
        self.whole = seconds("e2e_request_latency", "From a request's arrival to its end", _WHOLE)
        self.queued = seconds("request_queue_time", "From arrival to admission", _QUEUED)
        self.prompt = counter("prompt_tokens", "Tokens of prompts")
        self.cached = counter("cached_tokens", "Tokens of prompts that were in the cache")
        self.computed = counter("computed_tokens", "Tokens of prompts that were computed")
        self.forced = counter("forced_tokens", "Tokens of outputs that a grammar left no choice of")
        self.requests = counter("requests", "Requests by how they ended", ("key", "outcome"))
        self.aborts = counter("aborts", "Requests that were cut short, by why", ("key", "cause"))
        self.responses = counter("http_responses", "HTTP responses by status", ("status",))
        self.slow_readers = counter("slow_readers", "Streams whose clients stood still", ())
        self.restarts = counter("engine_restarts", "Restarts of a crashed engine", ())
        self.up = gauge("engine_up", "1 while the engine is there and answers")
        self.in_flight = gauge("requests_in_flight", "Requests that have not ended")


class _Tenant:
    """The children of one key, found once."""

    def __init__(self, name: str, families: _Families, tokens: _TokensOf) -> None:
        self.tokens = tokens
        self.first = families.first.labels(name)
        self.whole = families.whole.labels(name)
        self.queued = families.queued.labels(name)
        self.prompt = families.prompt.labels(name)
        self.cached = families.cached.labels(name)
        self.computed = families.computed.labels(name)
        self.forced = families.forced.labels(name)


class _TokensOf:
    """What is counted for every token of one key, in plain numbers: the library's own counters
    take several times as long."""

    def __init__(self) -> None:
        self.made = 0
        self.seconds = 0.0
        self.counts = [0] * (len(_BETWEEN) + 1)  # the last: above all bounds

    def took(self, gap: float, count: int) -> None:
        """`count` tokens came `gap` seconds after the one before each."""
        self.counts[bisect.bisect_left(_BETWEEN, gap)] += count
        self.seconds += gap * count


class _Tokens(Collector):
    """Generated tokens and the time between them, by key."""

    def __init__(self) -> None:
        self._keys: dict[str, _TokensOf] = {}

    def of(self, name: str) -> _TokensOf:
        return self._keys.setdefault(name, _TokensOf())

    def collect(self) -> Iterator[Metric]:
        made = CounterMetricFamily(
            f"{PREFIX}_generation_tokens", "Tokens of outputs", labels=["key"]
        )
        between = HistogramMetricFamily(
            f"{PREFIX}_inter_token_latency_seconds", "Between tokens of one output", labels=["key"]
        )
        bounds = [*map(floatToGoString, _BETWEEN), "+Inf"]
        for name, tokens in list(self._keys.items()):
            made.add_metric([name], tokens.made)
            buckets = list(zip(bounds, itertools.accumulate(tokens.counts)))
            between.add_metric([name], buckets, tokens.seconds)
        yield from (made, between)


class _Engine(Collector):
    """The engine's own numbers, as it told them last; counters never step back."""

    def __init__(self) -> None:
        self._now: dict[str, float] = {}
        self._before: dict[str, float] = {}  # of engines that have ended

    def take(self, gauges: Mapping[str, float]) -> None:
        self._now = dict(gauges)

    def retire(self, gauges: Mapping[str, float]) -> None:
        for name in _ENGINE_COUNTERS:
            self._before[name] = self._before.get(name, 0) + gauges.get(name, 0)
        self._now = {}

    def collect(self) -> Iterator[Metric]:
        for source, (name, said) in _ENGINE_GAUGES.items():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", said, value=self._now.get(source, 0))
        kv = GaugeMetricFamily(f"{PREFIX}_kv_tokens", "Tokens of the pool by use", labels=["state"])
        for state, source in _KV_STATES.items():
            kv.add_metric([state], self._now.get(source, 0))
        yield kv
        used = self._now.get("locked_tokens", 0) / max(1, self._now.get("kv_tokens", 0))
        yield GaugeMetricFamily(f"{PREFIX}_kv_usage_ratio", "Share that requests hold", value=used)
        for source, (name, said) in _ENGINE_COUNTERS.items():
            value = self._before.get(source, 0) + self._now.get(source, 0)
            yield CounterMetricFamily(f"{PREFIX}_{name}", said, value=value)
