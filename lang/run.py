"""A run: one program from its first line to the end of its last thread.

Owns: the branches of a run, its calls in flight, and the order of its end: user function, branches,
threads, error. Must not know: programs' arguments, batches, HTTP.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable
from typing import Any

from radixserve.lang.backends.base import Backend, Reply
from radixserve.lang.branch import Branch
from radixserve.lang.errors import BackendError, ProgramCancelled
from radixserve.lang.interpreter import Call, Interpreter, Place
from radixserve.lang.sampling import Sampling

JOIN_SECONDS = 10.0  # for a thread whose backend does not return from an aborted call


class Run:
    """use_thread: forked branches work side by side; otherwise each in the thread that appends."""

    def __init__(
        self, backend: Backend, defaults: Sampling, *, stream: bool = False, use_thread: bool = True
    ) -> None:
        self.id = secrets.token_hex(8)
        self._backend = backend
        self._use_thread = use_thread
        self._lock = threading.Lock()
        self._in_flight: set[str] = set()
        self._is_cancelled = False
        interpreter = Interpreter(Place(self.id), defaults, streaming=stream)
        self.root = Branch(interpreter, self._call, threaded=False)
        self._branches = [self.root]

    def fork(self, branch: Branch, size: int) -> list[Branch]:
        """Branches that this run waits for at its end."""
        children = branch.fork(size, threaded=self._use_thread)
        with self._lock:
            self._branches.extend(children)
        return children

    def execute(self, body: Callable[[], Any]) -> None:
        """Run `body` (the user's function on the root) and wait for every branch.

        Raises what body raised (the other branches are cancelled), else the first branch's failure
        that nobody has been handed. Its threads have ended in either case.
        """
        try:
            try:
                result = body()
                for branch in self._branches:
                    branch.settle()
            except BaseException:
                self.cancel()
                raise
            finally:
                self._end_branches()
            self._raise_unseen()
        except BaseException as error:
            self.root.conclude(None, error)
            raise
        self.root.conclude(result, None)

    def cancel(self) -> None:
        """Fail every branch with ProgramCancelled and abort the calls in flight."""
        with self._lock:
            self._is_cancelled = True
            branches, rids = list(self._branches), list(self._in_flight)
        for branch in branches:
            if not branch.is_settled():
                branch.fail(_cancelled())
        for rid in rids:
            # The error that led here must not be replaced by a backend that cannot even abort.
            with contextlib.suppress(Exception):
                self._backend.abort(rid)

    def _end_branches(self) -> None:
        for branch in self._branches:
            if branch is not self.root:
                branch.end()
                branch.join_thread(JOIN_SECONDS)

    def _raise_unseen(self) -> None:
        for branch in self._branches:
            if branch.failure is not None and not branch.failure.was_seen:
                branch.failure.reveal()

    def _call(self, call: Call, on_chunk: Callable[[Reply], None]) -> Any:
        rid = call.body["rid"]
        with self._lock:
            if self._is_cancelled:
                raise _cancelled()
            self._in_flight.add(rid)
        try:
            if call.kind == "choose":
                return self._backend.choose(call.body)
            if call.body["stream"]:
                return self._stream(call.body, on_chunk)
            return self._backend.generate(call.body)
        finally:
            with self._lock:
                self._in_flight.discard(rid)

    def _stream(self, body: dict[str, Any], on_chunk: Callable[[Reply], None]) -> Reply:
        chunks = self._backend.stream(body)
        try:
            for chunk in chunks:
                if self._is_cancelled:
                    raise _cancelled()
                if (chunk.get("meta_info") or {}).get("finish_reason") is not None:
                    return chunk
                on_chunk(chunk)
        finally:
            close = getattr(chunks, "close", None)
            if close is not None:
                close()
        raise BackendError(502, "stream_ended", "the stream ended before its last chunk")


def _cancelled() -> ProgramCancelled:
    return ProgramCancelled("the program was cancelled")
