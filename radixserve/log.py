"""One logger for the process, written to standard error."""

from __future__ import annotations

import logging
import sys

from radixserve import env

logger = logging.getLogger("radixserve")


def configure(process: str) -> None:
    """Send this process's log to standard error; `process` (front, engine) stands in each line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter(f"%(asctime)s {process} %(levelname).1s %(message)s", "%H:%M:%S")
    )
    logger.handlers[:] = [handler]
    logger.setLevel(env.log_level().upper())
    logger.propagate = False
