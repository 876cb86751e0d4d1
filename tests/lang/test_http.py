"""RuntimeEndpoint against a small HTTP server: bodies, streams, errors, lost connections."""

import contextlib
import http.server
import json
import threading

import pytest

import radixserve.lang as sgl
from radixserve.lang.backends import transport


class Server(http.server.ThreadingHTTPServer):
    """Answers /generate from a Mock. seen: (method, path, authorization, body)."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.mock = sgl.Mock(lambda prompt: "répo" if "bad" not in prompt else "")
        self.seen = []
        self.refusal = None
        self.chunks = None

    def handle_error(self, request, client_address):
        """Clients that go away are part of these tests."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        self.note(None)
        self.answer(200, {"model_path": "m", "path": self.path})

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(raw) if raw else None
        self.note(body)
        if self.server.refusal:
            self.answer(*self.server.refusal)
        elif self.path != "/generate":
            self.answer(200, {})
        elif body.get("stream"):
            self.stream(body)
        elif "choices" in body["input"][-1]:
            self.answer(200, self.server.mock.choose(body))
        else:
            self.answer(200, self.server.mock.generate(body))

    def stream(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for chunk in self.server.chunks or self.server.mock.stream(body):
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        if not self.server.chunks:
            self.wfile.write(b"data: [DONE]\n\n")

    def answer(self, status, value):
        data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def note(self, body):
        self.server.seen.append((self.command, self.path, self.headers.get("Authorization"), body))

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def endpoint(server):
    endpoint = sgl.RuntimeEndpoint(f"http://127.0.0.1:{server.server_port}/", api_key="key")
    with contextlib.closing(endpoint):
        yield endpoint


@sgl.function
def program(s, text="hi"):
    s += text + sgl.gen("x") + "; "
    s += sgl.select("y", ["a", "b"])


def test_the_same_program_over_http_and_in_process(server, endpoint):
    over_http = program.run(backend=endpoint)
    here = sgl.Mock(["répo", "a"])
    in_process = program.run(backend=here)
    assert over_http.text() == in_process.text() == "hirépo; a"
    strip = {"rid", "program"}
    sent = [{k: v for k, v in body.items() if k not in strip} for *_, body in server.seen]
    assert sent == [{k: v for k, v in body.items() if k not in strip} for body in here.calls]
    assert {auth for _, _, auth, _ in server.seen} == {"Bearer key"}


def test_streams_over_http(server, endpoint):
    state = program.run(backend=endpoint, stream=True)
    increments = list(state.text_iter("x"))
    assert "".join(increments) == "répo"
    assert len(increments) >= 1
    assert server.seen[0][3]["stream"] is True
    state.sync()
    assert state["y"] == "a"


def test_neighbours_of_generate(server, endpoint):
    assert endpoint.get_server_info()["path"] == "/get_server_info"
    assert endpoint.get_model_info()["path"] == "/get_model_info"
    endpoint.abort("r1")
    endpoint.flush_cache()
    assert [(path, body) for _, path, _, body in server.seen] == [
        ("/get_server_info", None),
        ("/get_model_info", None),
        ("/abort_request", {"rid": "r1"}),
        ("/flush_cache", None),
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_the_error_envelope_raises_with_its_fields(server, endpoint, stream):
    error = {"message": "too long", "type": "invalid_request_error", "param": "input", "code": "c"}
    server.refusal = (400, {"error": error})
    with pytest.raises(sgl.BackendError) as caught:
        program.run(backend=endpoint, stream=stream).sync()
    raised = caught.value
    assert (raised.status, raised.code, raised.message, raised.param) == (
        400,
        "c",
        "too long",
        "input",
    )
    assert str(raised) == "too long (400 c, input)"


def test_an_error_that_is_no_envelope(server, endpoint):
    server.refusal = (502, "<html>bad gateway</html>")
    with pytest.raises(sgl.BackendError, match="bad gateway") as caught:
        program.run(backend=endpoint)
    assert (caught.value.status, caught.value.code) == (502, "http_error")


def test_an_error_inside_a_stream(server, endpoint):
    server.chunks = [{"error": {"message": "engine died", "type": "internal", "code": None}}]
    with pytest.raises(sgl.BackendError, match="engine died"):
        program.run(backend=endpoint, stream=True).sync()


def test_a_stream_that_breaks_off(server, endpoint):
    server.chunks = [{"text": "r", "output_ids": [1], "meta_info": {"finish_reason": None}}]
    state = program.run(backend=endpoint, stream=True)
    with pytest.raises(sgl.BackendError, match="ended before"):
        state.sync()


def test_nobody_listens():
    endpoint = sgl.RuntimeEndpoint("http://127.0.0.1:9")
    with contextlib.closing(endpoint), pytest.raises(sgl.BackendError) as caught:
        program.run(backend=endpoint)
    assert "ConnectError" in caught.value.message
    assert caught.value.status == 0
    assert caught.value.__cause__ is not None


def test_an_address_without_a_scheme_is_refused_at_once():
    with pytest.raises(ValueError, match="http://"):
        sgl.RuntimeEndpoint("127.0.0.1:30000")


def test_a_lost_connection_names_the_address():
    endpoint = sgl.RuntimeEndpoint("http://127.0.0.1:9")
    with pytest.raises(sgl.BackendError, match=r"http://127\.0\.0\.1:9/get_model_info"):
        endpoint.get_model_info()
    endpoint.close()


class Kept(http.server.ThreadingHTTPServer):
    """Keeps connections open and counts them."""

    daemon_threads = True
    connections = 0
    refusal = None

    def process_request(self, request, client_address):
        self.connections += 1
        super().process_request(request, client_address)


class KeptHandler(Handler):
    protocol_version = "HTTP/1.1"

    def note(self, body):
        pass


@pytest.mark.parametrize("idle", [60.0, 0.0])
def test_a_connection_that_has_idled_is_not_used_again(monkeypatch, idle):
    """Its server may close it in that very moment, and the call would be lost."""
    assert transport.IDLE_SECONDS < 5, "when many servers do"
    monkeypatch.setattr(transport, "IDLE_SECONDS", idle)
    with Kept(("127.0.0.1", 0), KeptHandler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        endpoint = sgl.RuntimeEndpoint(f"http://127.0.0.1:{server.server_port}")
        try:
            for _ in range(3):
                endpoint.flush_cache()
        finally:
            endpoint.close()
            server.shutdown()
    assert server.connections == (1 if idle else 3)
