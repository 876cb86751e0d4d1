"""Stopping the servers that are not being measured, lest they spin beside the one that is.

Owns: SIGSTOP and SIGCONT on whole process trees. Must not know: what the processes are.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator

import psutil

_SETTLE = 0.5  # seconds in which a resumed tree finds out that time has passed


@contextlib.contextmanager
def paused(pids: Iterable[int]) -> Iterator[None]:
    """Inside the block the processes `pids` and all that they have started stand still.

    Parents stop first and go on last: a radixserve front sees its engine's heartbeats again before
    it can ask for them. Everything goes on at the end whatever happens. Raises psutil.NoSuchProcess
    for a pid that is not there.
    """
    trees = [_tree(pid) for pid in pids]
    try:
        for tree in trees:
            for pid in tree:
                _signal(pid, signal.SIGSTOP)
        yield
    finally:
        for tree in trees:
            for pid in reversed(tree):
                _signal(pid, signal.SIGCONT)
        if trees:
            time.sleep(_SETTLE)


def _tree(pid: int) -> list[int]:
    """pid and its descendants, parents first."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # a child may have ended meanwhile
        os.kill(pid, number)
