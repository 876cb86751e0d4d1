"""Programs on a real engine, in process and over HTTP, and the example that `make demo` runs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import radixserve as rs
from radixserve.engine import Engine
from tests.e2e.conftest import check_no_leak
from tests.e2e.test_serve import Server

LONG = "the quick brown fox jumps over the lazy dog and then " * 20


@rs.function
def forked(s, k):
    s += LONG
    children = s.fork(k)
    for i, child in enumerate(children):
        child += f"number {i} says" + rs.gen("word", max_tokens=3, temperature=0, ignore_eos=True)
    children.join()
    s += "all in all" + rs.gen("end", max_tokens=4, temperature=0, ignore_eos=True)


@rs.function
def chat(s):
    s += rs.system("be brief")
    s += rs.user("hello") + rs.assistant(rs.gen("first", max_tokens=5, temperature=0))
    with s.user():
        s += "and then?"
    with s.assistant():
        s += rs.select("pick", ["a dog", "a fox", "the quick brown fox"])


@pytest.fixture(scope="module", params=["engine", "http"])
def backend(request, start, tiny_model, tmp_path_factory) -> Iterator[object]:
    if request.param == "engine":
        with start() as engine:
            yield engine
            check_no_leak(engine)
        return
    server = Server(tiny_model, tmp_path_factory.mktemp("programs") / "log")
    try:
        endpoint = rs.RuntimeEndpoint(server.wait_ready().url)
        yield endpoint
        endpoint.close()
    finally:
        server.stop()


def test_the_same_program_on_both_backends(backend) -> None:
    state = forked.run(4, backend=backend)
    assert len(state["word"]) == 4
    again = forked.run(4, backend=backend)
    assert (again["word"], again["end"]) == (state["word"], state["end"])
    talk = chat.run(backend=backend)
    assert talk["pick"] in ("a dog", "a fox", "the quick brown fox")
    assert talk.messages()[-1] == {"role": "assistant", "content": talk["pick"]}
    scores = talk.get_meta_info("pick")["scores"]
    assert len(scores) == 3
    states = chat.run_batch([{}] * 5, backend=backend)
    assert {state["pick"] for state in states} == {talk["pick"]}


def test_a_stream_gives_the_text_of_the_run(backend) -> None:
    whole = chat.run(backend=backend)
    streamed = chat.run(backend=backend, stream=True)
    assert "".join(streamed.text_iter("first")) == whole["first"]
    assert streamed["pick"] == whole["pick"]


def test_errors_of_the_engine_surface(backend) -> None:
    @rs.function
    def bad(s):
        s += "x" + rs.gen("a", max_tokens=3, temperature=-1.0)

    with pytest.raises(Exception, match="temperature"):
        bad.run(backend=backend)


def test_a_fork_computes_its_prefix_once(engine: Engine) -> None:
    """A fork of k on n tokens computes n plus the suffixes, and at most a page for each child."""
    engine.flush_cache()
    before = engine.gauges()
    state = forked.run(6, backend=engine)
    after = engine.gauges()
    computed = after.computed_tokens - before.computed_tokens
    prompts = after.prompt_tokens - before.prompt_tokens
    encode = engine._gateway.renderer.encode_text
    n = len(encode(LONG))
    suffixes = sum(len(encode(f"number {i} says")) for i in range(6)) + len(encode("all in all"))
    # Less than the sum where suffixes begin alike and one was computed before the other.
    assert n < computed <= n + suffixes + 7 * 16
    assert prompts == 7 * n + suffixes
    assert len(state["word"]) == 6


def test_quickstart_runs_and_prints_what_was_reused(tiny_model) -> None:
    done = subprocess.run(
        [sys.executable, "examples/quickstart.py", "--model", str(tiny_model)],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    table = dict(re.findall(r"^ *(\S[\w ]*?) {2,}([\d,.%]+) +[\d,.%]+$", done.stdout, re.M))
    assert table.keys() >= {"prompt tokens", "computed", "reused", "hit rate", "seconds"}
    assert int(table["hit rate"].rstrip("%")) > 50
    assert "Month of the herring fair" in done.stdout
