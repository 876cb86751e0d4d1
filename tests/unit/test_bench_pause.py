"""Whole process trees stand still and go on."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from benchmarks.serving import pause
from benchmarks.serving.pause import paused

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                         start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A process and its child in a session of its own, as a server and its engine are."""
    monkeypatch.setattr(pause, "_SETTLE", 0.0)
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            yield [parent.pid, child]
        finally:
            parent.kill()
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(child).kill()


def stand_still(pids: list[int], expected: bool) -> bool:
    """Whether all of them come to stand still, or to move, within two seconds."""
    end = time.monotonic() + 2
    while time.monotonic() < end:
        states = {psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in pids}
        if states == {expected}:
            return True
        time.sleep(0.01)
    return False


def test_a_process_and_its_children_stand_still_inside_the_block(tree: list[int]):
    assert stand_still(tree, False)
    with paused(tree[:1]):
        assert stand_still(tree, True)
    assert stand_still(tree, False)


def test_an_error_inside_the_block_lets_them_go_on(tree: list[int]):
    with pytest.raises(KeyError), paused(tree[:1]):
        raise KeyError
    assert stand_still(tree, False)


def test_a_process_that_is_not_there_is_an_error_and_nothing_stops(tree: list[int]):
    missing = max(psutil.pids()) + 100_000
    with pytest.raises(psutil.NoSuchProcess), paused([tree[0], missing]):
        pass
    assert stand_still(tree, False)


def test_a_process_that_ends_while_it_stands_still(tree: list[int]):
    with paused(tree[:1]):
        psutil.Process(tree[1]).kill()
    assert stand_still(tree[:1], False)
