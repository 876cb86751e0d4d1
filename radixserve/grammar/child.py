"""The process that compiles, as its parent sees it.

Owns: its start, a question and its answer, its end. Must not know: which constraint is next, who
waits for it, what becomes of a compiled grammar.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time

import msgspec
import psutil

from radixserve.ending import end
from radixserve.errors import InternalError, InvalidRequest, RequestError
from radixserve.grammar import worker
from radixserve.grammar.refusal import CODE
from radixserve.grammar.turns import Turn
from radixserve.log import logger
from radixserve.wire.params import Constraint

WORTH_GIVING_UP = 2.0  # seconds of work after which a new child costs less than what is left
STARTS = ((worker.BARE,), ())  # arguments, in the order in which they are tried


class Child:
    """A call that finds the process dead starts another. setup: of worker.Setup. start_seconds:
    until it is ready. answer_bytes: the longest answer. give_up and kill are for any thread, the
    other verbs for the one that asks.
    """

    def __init__(self, setup: bytes, *, start_seconds: float, answer_bytes: int) -> None:
        self._setup = setup
        self._start_seconds = start_seconds
        self._answer_bytes = answer_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._turn: Turn | None = None  # under way
        self._before = 0.0  # seconds of work of the process when it began
        self._is_given_up = False
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> bool:
        """Have a ready process; says whether there is one."""
        if self._process is not None:
            return True
        for arguments in STARTS:
            with self._lock:
                if self._is_closed:
                    return False
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "radixserve.grammar.worker", *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            began = time.monotonic()
            if self._exchange(self._setup, Turn(None, self._start_seconds)) is not None:
                return True
            if not self._is_closed:
                seconds = time.monotonic() - began
                logger.warning("a process to compile grammars did not start in %.1f s", seconds)
        return False

    def give_up(self, constraint: Constraint) -> None:
        """End the process if it is at work on this one for a while."""
        with self._lock:
            turn, process = self._turn, self._process
            if turn is None or process is None or turn.constraint != constraint:
                return
            if turn.elapsed > WORTH_GIVING_UP:
                self._is_given_up = True
                process.kill()

    def ask(self, turn: Turn) -> worker.Answer | RequestError | None:
        """The answer, or why there is none; None when it was given up or has to come later.

        A process may have ended for reasons of its own, so a death is asked about a second time.
        """
        assert turn.constraint is not None
        for _ in range(2):
            if not self.start():
                return InternalError("the process that compiles grammars does not start")
            turn.begin()
            self._before = self._cpu_seconds()
            with self._lock:
                self._turn, self._is_given_up = turn, False
            body = self._exchange(msgspec.msgpack.encode(turn.constraint), turn)
            with self._lock:
                self._turn = None
            if body is not None:
                answer = msgspec.msgpack.decode(body, type=worker.Answer)
                if answer.is_last:
                    self.bury()
                return answer
            if self._is_given_up or turn.comes_again:
                return None
            if turn.is_over:
                return _given_up(turn.constraint, f"takes longer than {turn.seconds:g} s")
        return _given_up(turn.constraint, "ends the process that does it")

    def kill(self) -> None:
        """End the process; there will be no other."""
        with self._lock:
            self._is_closed = True
            process = self._process
        if process is not None:
            process.kill()

    def bury(self) -> None:
        """Free what a process that has ended or failed still holds."""
        process, self._process = self._process, None
        if process is not None:
            end(process)

    def _exchange(self, body: bytes, turn: Turn) -> bytes | None:
        """Send one message and wait for one; a process that does not answer is ended."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            worker.send(process.stdin, body)  # type: ignore[arg-type]
            answer = self._read(process.stdout.fileno(), turn)
        except OSError:
            answer = None
        if answer is None:
            self.bury()
        return answer

    def _worked(self) -> float:
        return self._cpu_seconds() - self._before

    def _cpu_seconds(self) -> float:
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = psutil.Process(self._process.pid).cpu_times()
                return float(times.user + times.system)
        return self._before

    def _read(self, fd: int, turn: Turn) -> bytes | None:
        data = bytearray()
        size: int | None = None
        while size is None or len(data) < size:
            left = turn.left(self._worked())
            if left <= 0:
                return None
            if not select.select([fd], [], [], left)[0]:
                continue
            chunk = os.read(fd, 1 << 20)
            if not chunk:
                return None
            data += chunk
            if size is None and len(data) >= worker.HEAD:
                size = worker.HEAD + worker.size_of(bytes(data[: worker.HEAD]))
                if size > self._answer_bytes:
                    return None
        return bytes(data[worker.HEAD :])


def _given_up(constraint: Constraint, why: str) -> InvalidRequest:
    logger.warning("a grammar was given up: compiling it %s", why)
    return InvalidRequest(f"compiling it {why}", param=constraint.kind, code=CODE)
