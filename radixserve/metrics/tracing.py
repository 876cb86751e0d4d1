"""OpenTelemetry spans of requests: request > queue > prefill > decode.

Owns: what the spans are and say. Must not know: HTTP, the wire. The package is an optional extra;
nothing here imports it before somebody asks for traces.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from radixserve.errors import ConfigError
from radixserve.metrics.trail import Trail

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SERVICE = "radixserve"
CLOSE_SECONDS = 3


def otlp_provider(endpoint: str) -> TracerProvider:
    """Sends spans, in batches from a thread of its own, to an OTLP collector.

    endpoint: http://host:4318 or the full URL of its traces. Raises ConfigError when the package is
    not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"--otlp-endpoint needs OpenTelemetry: pip install 'radixserve[otel]' ({error})"
        ) from None
    url = endpoint.rstrip("/").removesuffix("/v1/traces") + "/v1/traces"
    resource = Resource.create({"service.name": SERVICE})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # Traces.close() does it
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url, timeout=5)))
    return provider


class Traces:
    """A trail.Recorder that makes the spans of a request when it has ended."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE)

    def produced(self, trail: Trail, count: int, gap: float | None) -> None:
        """The trail keeps all that is needed."""

    def ended(self, trail: Trail) -> None:
        if not trail.subject.origin.counted:
            return
        from opentelemetry.trace import SpanKind, set_span_in_context

        request = self._tracer.start_span(
            "request",
            context=_parent(trail.subject.origin.traceparent),
            kind=SpanKind.SERVER,
            attributes=_attributes(trail),
            start_time=_at(trail, trail.arrived),
        )
        inside = set_span_in_context(request)
        for name, start, end in _stages(trail):
            span = self._tracer.start_span(name, context=inside, start_time=_at(trail, start))
            span.end(_at(trail, end))
        if trail.outcome == "error":
            from opentelemetry.trace import StatusCode

            request.set_status(StatusCode.ERROR, trail.cause or "the request failed")
        request.end(_at(trail, trail.finished))

    def close(self) -> None:
        """Send what is left; gives up after CLOSE_SECONDS where the collector does not answer."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(CLOSE_SECONDS)


def _stages(trail: Trail) -> list[tuple[str, float, float]]:
    """(name, start, end) of what the request went through, one behind the other."""
    queued = min(trail.arrived + trail.totals.queue_seconds, trail.finished)
    first = trail.finished if trail.first is None else trail.first
    stages = [("queue", trail.arrived, queued)]
    if trail.totals.queue_seconds or trail.first is not None:
        stages.append(("prefill", min(queued, first), first))
    if trail.first is not None:
        stages.append(("decode", first, trail.finished))
    return stages


def _attributes(trail: Trail) -> dict[str, Any]:
    subject, totals = trail.subject, trail.totals
    found: dict[str, Any] = {
        "radixserve.rid": subject.rid,
        "radixserve.request_id": subject.origin.request_id,
        "radixserve.key": subject.origin.tenant,
        "radixserve.program.id": subject.program,
        "radixserve.program.call": subject.call,
        "radixserve.program.parent": subject.parent,
        "radixserve.outcome": trail.outcome,
        "radixserve.cause": trail.cause,
    }
    found = {name: value for name, value in found.items() if value}
    return found | {
        "radixserve.outputs": subject.outputs,
        "radixserve.cached_tokens": totals.cached_tokens,
        "radixserve.computed_tokens": totals.computed_tokens,
        "radixserve.forced_tokens": totals.forced_tokens,
        "gen_ai.usage.input_tokens": totals.prompt_tokens,
        "gen_ai.usage.output_tokens": totals.completion_tokens,
    }


def _at(trail: Trail, moment: float) -> int:
    """Nanoseconds of Unix time."""
    return int((trail.wall + moment - trail.arrived) * 1e9)


def _parent(traceparent: str) -> Any:
    """The caller's span; None where there is none or it cannot be read."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not traceparent:
        return None
    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})
