"""What clients are told whose calls are cut at the end of the grace time."""

from __future__ import annotations

import pathlib
import signal
from concurrent.futures import ThreadPoolExecutor

from radixserve.lang.compiled.coding import VERSION
from tests.e2e.test_process import wait_until
from tests.e2e.test_serve import Server, post

HELLO = [{"role": "user", "content": "x"}]
LONG = {"ignore_eos": True, "max_new_tokens": 8000}
PROGRAM = {
    "radixserve_program": VERSION,
    "steps": [{"do": "text", "text": "x"}, {"do": "gen", "name": "a", "sampling": LONG}],
}
CALLS = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 8000, "ignore_eos": True},
    "/v1/completions": {"prompt": "x", "max_tokens": 8000, "ignore_eos": True},
    "/v1/messages": {"messages": HELLO, "max_tokens": 8000, "temperature": 0},
    "/v1/responses": {"input": "x", "max_output_tokens": 8000, "temperature": 0},
    "/v1/programs": {"program": PROGRAM},
    "/generate": {"text": "x", "sampling_params": LONG},
}


def open_outputs(server: Server) -> int:
    info = server.info()
    return int(info["running"] + info["waiting"])


def test_calls_cut_at_the_end_of_the_grace_time(tiny_model: pathlib.Path, tmp_path) -> None:
    """503 `stopping` with a hint in every dialect, a stream as its last event; /generate gives what
    there is. The process exits with 0."""
    server = Server(tiny_model, tmp_path / "log", "--grace", "0.5")
    try:
        server.wait_ready()
        with ThreadPoolExecutor(2 * len(CALLS)) as pool:
            whole = {path: pool.submit(post, server, path, **body) for path, body in CALLS.items()}
            streams = {
                path: pool.submit(post, server, path, **body, stream=True)
                for path, body in CALLS.items()
            }
            wait_until(lambda: open_outputs(server) == 2 * len(CALLS))
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(15) == 0, server.log.read_text()
            replies = {path: call.result() for path, call in whole.items()}
            events = {path: call.result().text.split("\n\n") for path, call in streams.items()}
            last = {path: "".join(sent[-3:]) for path, sent in events.items()}
    finally:
        server.stop()
    native = replies.pop("/generate")
    finish = native.json()["meta_info"]["finish_reason"]
    assert (native.status_code, finish["type"], finish["status_code"]) == (200, "abort", 503)
    assert finish["message"] in last.pop("/generate")
    for path, reply in replies.items():
        assert reply.status_code == 503, (path, reply.text)
        assert "the server is stopping" in reply.text, path
        assert int(reply.headers["retry-after"]) >= 1, path
        assert "the server is stopping" in last[path], (path, last[path])
