"""The only reader of os.environ.

Each function names one variable and says what it does; nothing else in the tree looks at the
environment, so this file is the full list.
"""

from __future__ import annotations

import os
import pathlib


def cache_dir() -> pathlib.Path:
    """RADIXSERVE_CACHE: where models and built tokenizers are kept (~/.cache/radixserve)."""
    value = os.environ.get("RADIXSERVE_CACHE")
    if value:
        return pathlib.Path(value).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(base).expanduser() / "radixserve"


def log_level() -> str:
    """RADIXSERVE_LOG: level of the log (debug, info, warning, error)."""
    return os.environ.get("RADIXSERVE_LOG", "info")


def isa() -> str:
    """RADIXSERVE_ISA: path of the native kernels (avx512, avx2, neon, plain), off for torch alone;
    empty takes the machine's best."""
    return os.environ.get("RADIXSERVE_ISA", "")


def native_library() -> pathlib.Path | None:
    """RADIXSERVE_LIBRARY: a build of the native kernels to load instead of the installed one (the
    sanitizer run)."""
    value = os.environ.get("RADIXSERVE_LIBRARY")
    return pathlib.Path(value) if value else None


def log_format() -> str:
    """RADIXSERVE_LOG_FORMAT: how log lines look (text, json) where no --log-format says it; a front
    sets it for its engine."""
    return os.environ.get("RADIXSERVE_LOG_FORMAT", "text")


def of_engine(log_format: str) -> dict[str, str]:
    """The environment of an engine process: this one's, with OpenMP threads that sleep when idle.

    They spin by default, which is no faster here and stops everything when another program (or the
    front) wants one of few cores: a prefill of 2,048 tokens on a busy 2-core machine took 32 s, and
    2.0 s without spinning. OMP_WAIT_POLICY, where it is set, is left alone.
    """
    return {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "RADIXSERVE_LOG_FORMAT": log_format}
