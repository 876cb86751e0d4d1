"""One logger for the process, written to standard error.

Owns: how lines look, as text or as one JSON object each, and the id of the HTTP call that a line
belongs to. Must not know: who logs what.
"""

from __future__ import annotations

import contextvars
import datetime
import json
import logging
import sys

from radixserve import env

logger = logging.getLogger("radixserve")

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
"""Id of the HTTP call that this task serves."""

_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """A line is an object: time, level, process, message, then whatever `extra` had."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "message": record.getMessage(),
        }
        if request_id.get():
            line["request_id"] = request_id.get()
        line |= {name: v for name, v in vars(record).items() if name not in _OWN_FIELDS}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(process: str, log_format: str = "") -> None:
    """Send this process's log to standard error; `process` (front, engine) stands in each line.

    log_format: text or json; empty takes what the environment says.
    """
    handler = logging.StreamHandler(sys.stderr)
    if (log_format or env.log_format()) == "json":
        handler.setFormatter(JsonLines(process))
    else:
        handler.setFormatter(
            logging.Formatter(f"%(asctime)s {process} %(levelname).1s %(message)s", "%H:%M:%S")
        )
    logger.handlers[:] = [handler]
    logger.setLevel(env.log_level().upper())
    logger.propagate = False
    # What these complain of is a line like any other; asyncio warns of every client that left.
    levels = {"uvicorn": logging.WARNING, "asyncio": logging.ERROR, "opentelemetry": logging.ERROR}
    for name, level in levels.items():
        other = logging.getLogger(name)
        other.handlers[:] = [handler]
        other.setLevel(level)
        other.propagate = False
