"""What the tests of programs share. Every test must leave as many threads as it found."""

import contextlib
import threading
import time

import pytest

import radixserve.lang as sgl
from tests.lang import servers


def of_lang(before):
    """New threads of programs; an engine's own stay as long as it does."""
    return {
        thread
        for thread in set(threading.enumerate()) - before
        if thread.name.startswith("radixserve-") and thread.name != "radixserve-front"
    }


@pytest.fixture(autouse=True)
def no_thread_left_behind():
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    while (left := of_lang(before)) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not left


@pytest.fixture
def run():
    """run(body, mock, **options): the body as a program on a mock backend."""

    def run_body(body, mock=None, **options):
        return sgl.function(body).run(backend=mock or sgl.Mock(), **options)

    return run_body


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A random model of three layers with a tokenizer and a chat template."""
    from tests import tiny
    from tests.tiny_tokenizer import make_tokenizer

    folder = tmp_path_factory.mktemp("tiny-lang")
    tiny.make_model(folder, vocab=448, max_position_embeddings=8192, eos_token_id=2)
    return make_tokenizer(folder)


@pytest.fixture(scope="session")
def tiny_engine(tiny_folder):
    """The tiny model in this process; its threads are there before any test's."""
    from radixserve.engine import Engine

    settings = {"dtype": "float32", "threads": 1, "kv_tokens": 16384, "audit": True}
    with Engine(str(tiny_folder), inline=True, **settings) as engine:
        engine.generate("warm", {"max_new_tokens": 1})
        yield engine


@pytest.fixture(scope="session")
def tiny_server(tiny_folder, tmp_path_factory):
    """The same model behind HTTP, as a process; its address."""
    from tests.e2e.test_serve import Server

    server = Server(tiny_folder, tmp_path_factory.mktemp("lang-serve") / "log")
    try:
        yield server.wait_ready().url
    finally:
        server.stop()


@pytest.fixture(scope="session")
def anthropic_server():
    """A scripted messages API: it answers each prompt with its last word, twice."""
    with servers.Anthropic() as server:
        yield server


@pytest.fixture
def closing():
    """closing(backend): the backend, closed after the test."""
    with contextlib.ExitStack() as stack:

        def close_later(backend):
            stack.callback(backend.close)
            return backend

        yield close_later
