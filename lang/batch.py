"""Many runs of one program at once, results in the order of their arguments.

Owns: how many run side by side, and what one failure does to the others. Must not know: programs.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

from radixserve.lang.run import Run
from radixserve.lang.state import ProgramState

Job = Callable[[Run], None]


class Batch:
    """jobs[i](run) executes item i on a run from open_run(); one failure cancels the others."""

    def __init__(self, jobs: Sequence[Job], open_run: Callable[[], Run], workers: int) -> None:
        self._jobs = jobs
        self._open_run = open_run
        self._workers = workers
        self._lock = threading.Lock()
        self._open: set[Run] = set()
        self._error: BaseException | None = None

    def results(self, ahead: int, show_progress: bool) -> Iterator[ProgramState]:
        """States in order, at most `ahead` of them started and not yet taken.

        Raises the first error of any job. Closing it cancels what is running.
        """
        waiting: deque[Future[ProgramState | None]] = deque()
        jobs, started, done = iter(self._jobs), 0, 0
        with ThreadPoolExecutor(self._workers, thread_name_prefix="radixserve-batch") as pool:
            try:
                while True:
                    while len(waiting) < ahead and (job := next(jobs, None)) is not None:
                        waiting.append(pool.submit(self._work, job, started))
                        started += 1
                    if not waiting:
                        return
                    state = waiting.popleft().result()
                    if state is None:
                        break
                    done += 1
                    if show_progress:
                        self._report(done)
                    yield state
            except BaseException as error:
                self._stop(error)
                raise
        if self._error is not None:
            raise self._error

    def _work(self, job: Job, item: int) -> ProgramState | None:
        """None when the batch has been stopped, by this job's error or before it."""
        with self._lock:
            if self._error is not None:
                return None
            run = self._open_run()
            self._open.add(run)
        try:
            job(run)
        except BaseException as error:
            # A program thread's border: kept here, raised to the caller by results().
            error.add_note(f"raised by item {item} of run_batch")
            self._stop(error)
            return None
        finally:
            with self._lock:
                self._open.discard(run)
        return ProgramState(run, run.root, outside=True)

    def _stop(self, error: BaseException) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            runs = list(self._open)
        for run in runs:
            run.cancel()

    def _report(self, done: int) -> None:
        end = "\n" if done == len(self._jobs) else ""
        print(f"\r{done}/{len(self._jobs)}", end=end, file=sys.stderr, flush=True)


def workers_for(num_threads: int | Literal["auto"], jobs: int) -> int:
    """ "auto": enough to keep a server busy, 96 or 16 per core. Never more than there are jobs."""
    if num_threads == "auto":
        return min(max(96, 16 * (os.cpu_count() or 1)), jobs)
    if num_threads < 1:
        raise ValueError(f"num_threads must be at least 1, not {num_threads}")
    return min(num_threads, jobs)
