"""Whether a finished text satisfies a JSON Schema.

Owns: the child processes that validate, their time limits, their end. Must not know: requests,
dialects.

Validating runs in a child because a schema's pattern may take a validator for ever, and a thread
cannot be stopped. What takes more than SHORT_SECONDS of a child's own work is given up there and
done again in a second child, so that what takes long waits for its like alone. A child ends when it
has had nothing to do for a while, and with its parent.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import select
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from radixserve.chunks import Violation
from radixserve.ending import end
from radixserve.log import logger

SECONDS = 5.0
SHORT_SECONDS = 0.25
START_SECONDS = 30.0

_for_verdicts = ThreadPoolExecutor(1, thread_name_prefix="verdict")
_for_long_ones = ThreadPoolExecutor(1, thread_name_prefix="verdict-long")


async def violations(schema: str, text: str) -> tuple[Violation, ...]:
    """What of `schema` (JSON text) `text` breaks, at most 100 entries; () where nothing.

    pointer: the place in the value. keyword: of the schema that is broken; "" where `text` is no
    JSON, or where no verdict could be reached, which is never taken for a good one.
    """
    answer = await _asked({"schema": schema, "text": text})
    if isinstance(answer, str):
        return (Violation(pointer="", keyword="", message=answer),)
    return tuple(msgspec.convert(answer["violations"], list[Violation]))


async def fault_of(schema: str) -> str | None:
    """Why no draft's validator can read `schema` (JSON text); None where one can."""
    answer = await _asked({"schema": schema})
    return answer if isinstance(answer, str) else answer["fault"]


async def _asked(question: dict[str, str]) -> dict[str, Any] | str:
    loop = asyncio.get_running_loop()
    short = {**question, "seconds": SHORT_SECONDS}
    answer = await loop.run_in_executor(_for_verdicts, _child.ask, short)
    if isinstance(answer, dict) and "late" in answer:
        answer = await loop.run_in_executor(_for_long_ones, _long_child.ask, question)
    return answer


class _Child:
    """The process that validates. A question that finds it gone starts another."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def ask(self, question: dict[str, Any]) -> dict[str, Any] | str:
        """The child's answer, or in words why there is none."""
        line = msgspec.json.encode(question) + b"\n"
        with self._lock:
            for _ in range(2):  # an idle child may have ended on its own
                if not self._start():
                    return "not validated: the validator does not start"
                deadline = time.monotonic() + SECONDS
                answer = self._exchange(line, deadline)
                if answer is not None:
                    return msgspec.json.decode(answer, type=dict[str, Any])
                self._end()
                if time.monotonic() >= deadline:
                    logger.warning("validating an output took longer than %g s", SECONDS)
                    return f"not validated: it takes longer than {SECONDS:g} s"
        return "not validated: the validator failed"

    def close(self) -> None:
        with self._lock:
            self._end()

    def _start(self) -> bool:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "radixserve.native.validator"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            if self._exchange(b"", time.monotonic() + START_SECONDS) is None:
                self._end()
                return False
        return True

    def _exchange(self, line: bytes, deadline: float) -> bytes | None:
        """Send a line and read one; None where the child has ended or is late."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except OSError:
            return None
        found = bytearray()
        fd = process.stdout.fileno()
        while not found.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                return None
            piece = os.read(fd, 1 << 16)
            if not piece:
                return None
            found += piece
        return bytes(found)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process)


_child, _long_child = _Child(), _Child()
atexit.register(_child.close)
atexit.register(_long_child.close)
