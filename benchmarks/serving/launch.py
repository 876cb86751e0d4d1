"""A server of this project's own, for as long as a measurement needs it.

Owns: its process. Must not know: what is measured.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx


@contextlib.contextmanager
def served(model: str, kv_tokens: int, *flags: str) -> Iterator[str]:
    """A server of `model`, while the block lasts; its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "radixserve.cli", "serve", "--model", model, "--port"]
    command += [str(port), "--kv-tokens", str(kv_tokens), "--no-access-log", *flags]
    process = subprocess.Popen([*command, "--served-name", "m"])
    try:
        _wait_until_ready(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/ready").status_code == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"the server ended with {process.returncode} before it was ready")
