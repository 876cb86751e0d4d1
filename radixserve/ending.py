"""How a child process with pipes is ended.

Owns: the order of it. Must not know: what the process does.
"""

from __future__ import annotations

import contextlib
import subprocess


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill it, free its pipes, take its exit status. What was not written any more is lost."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()
