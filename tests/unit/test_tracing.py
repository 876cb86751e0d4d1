"""Spans of a request: what they are called, when they begin and end, whose children they are."""

from __future__ import annotations

import http.server
import sys
import threading

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from radixserve.errors import ConfigError
from radixserve.metrics.tracing import Traces, otlp_provider
from radixserve.metrics.trail import Counts, Origin, Subject, Trail

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.traces = Traces(provider)

    def trail(self, **origin) -> Trail:
        subject = Subject(
            rid="r1", outputs=1, origin=Origin(**origin), program="p", call="2.1", parent="2"
        )
        return Trail(subject, [self.traces], arrived=50.0, wall=1000.0)

    def found(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}


def times(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None
    assert span.end_time is not None
    return round(span.start_time / 1e9, 6), round(span.end_time / 1e9, 6)


def test_the_stages_of_a_request() -> None:
    spans = Spans()
    trail = spans.trail(tenant="alice", request_id="id", traceparent=PARENT)
    trail.tokens(0, 1, 52.0)
    trail.tokens(0, 2, 53.0)
    counts = Counts(prompt_tokens=9, completion_tokens=3, cached_tokens=4, queue_seconds=0.5)
    trail.end(0, "length", counts, 53.5)
    found = spans.found()
    assert {name: times(span) for name, span in found.items()} == {
        "request": (1000.0, 1003.5),
        "queue": (1000.0, 1000.5),
        "prefill": (1000.5, 1002.0),
        "decode": (1002.0, 1003.5),
    }
    request = found["request"]
    assert request.context is not None
    assert request.parent is not None
    assert f"{request.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{request.parent.span_id:016x}" == PARENT.split("-")[2]
    for name in ("queue", "prefill", "decode"):
        child = found[name].parent
        assert child is not None
        assert child.span_id == request.context.span_id
    said = dict(request.attributes or {})
    assert said["radixserve.program.id"] == "p"
    assert said["radixserve.program.call"] == "2.1"
    assert said["radixserve.cached_tokens"] == 4
    assert said["radixserve.key"] == "alice"
    assert said["radixserve.request_id"] == "id"
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (9, 3)
    assert said["radixserve.outcome"] == "length"


def test_a_request_that_ends_in_the_queue_has_no_later_stages() -> None:
    spans = Spans()
    spans.trail().end(0, "abort", Counts(prompt_tokens=9), 51.0)
    assert set(spans.found()) == {"request", "queue"}
    assert spans.found()["request"].parent is None


def test_a_failed_request_is_an_error() -> None:
    spans = Spans()
    spans.trail().lose(51.0)
    status = spans.found()["request"].status
    assert (status.status_code, status.description) == (StatusCode.ERROR, "engine")


def test_probes_have_no_spans() -> None:
    spans = Spans()
    spans.trail(counted=False).end(0, "stop", Counts(), 51.0)
    assert spans.found() == {}


@pytest.mark.parametrize("tail", ["", "/", "/v1/traces"])
def test_spans_reach_a_collector(tail: str) -> None:
    posted: list[tuple[str, bytes]] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        traces = Traces(otlp_provider(f"http://127.0.0.1:{server.server_port}{tail}"))
        trail = Trail(Subject(rid="seen", outputs=1, origin=Origin()), [traces], 50.0)
        trail.end(0, "stop", Counts(prompt_tokens=1), 51.0)
        traces.close()
        server.shutdown()
        serving.join()
    ((path, body),) = posted
    assert path == "/v1/traces"
    assert b"seen" in body
    assert b"queue" in body


def test_without_the_package_asking_for_traces_says_what_to_install(monkeypatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"--otlp-endpoint .* pip install 'radixserve\[otel\]'"):
        otlp_provider("http://127.0.0.1:4318")
