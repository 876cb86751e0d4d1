"""Every test here must leave as many threads as it found."""

import threading
import time

import pytest

import radixserve.lang as sgl


@pytest.fixture(autouse=True)
def no_thread_left_behind():
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not left


@pytest.fixture
def run():
    """run(body, mock, **options): the body as a program on a mock backend."""

    def run_body(body, mock=None, **options):
        return sgl.function(body).run(backend=mock or sgl.Mock(), **options)

    return run_body
