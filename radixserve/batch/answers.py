"""The output file.

Owns: the shape of its lines, what of an earlier run is kept. Must not know: how answers come about.

An answer to one of our own lines is {"id", "text", "finish_reason", "usage", ..}, with "value"
where the text was asked to be JSON and is, or {"id", "error"}; a line without an id goes by its
number, as "line". OpenAI's lines are answered in OpenAI's shape. A file holds one line for each
line of the input, in its order, and nothing of it is ever rewritten; so a run that was killed goes
on where its file ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from radixserve.api.faults import envelope
from radixserve.batch.lines import Line, Name
from radixserve.errors import ConfigError, RequestError

Names = dict[str, Name]


def open_output(path: str, *, overwrite: bool) -> BinaryIO:
    """The file, made if missing, locked against another run. Raises ConfigError."""
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigError(f"another run is writing {path}") from error
    if overwrite:
        file.truncate(0)
    return file


@dataclass(frozen=True, slots=True)
class Kept:
    """What an earlier run has answered: so many lines, so many of them with an error. rest: the
    lines that it has not."""

    rest: Iterator[Line]
    count: int = 0
    failed: int = 0
    read: int = 0


def keep_answers(file: BinaryIO, lines: Iterator[Line], limit: int) -> Kept:
    """Match the answers in `file` with the lines that they answer, and cut off a last one without
    its end. What is written next stands behind them.

    Raises ConfigError, with the file as it was, where it holds something else.
    """
    size = count = failed = read = 0
    torn: Line | None = None
    while raw := file.readline():
        line = next(lines, None)
        if line is None or not _answers(raw, line.names(limit)):
            raise ConfigError(
                f"line {count + 1} of the output answers no such line of the input: "
                f"{raw[:60]!r}; name another output, or --overwrite"
            )
        if not raw.endswith(b"\n"):
            torn = line
            break
        size += len(raw)
        count += 1
        read = line.end
        failed += _is_failure(json.loads(raw))
    file.seek(size)
    file.truncate()
    rest = lines if torn is None else itertools.chain([torn], lines)
    return Kept(rest, count, failed, read)


def _answers(raw: bytes, names: Names) -> bool:
    """Whether an output line, or what there is of it, answers the line of that name."""
    if not raw.endswith(b"\n"):
        head = b'{"id":"batch_req_' if "custom_id" in names else msgspec.json.encode(names)[:-1]
        return raw[: len(head)] == head[: len(raw)]
    try:
        told = json.loads(raw)
    except ValueError:
        return False
    return isinstance(told, dict) and all(told.get(key) == name for key, name in names.items())


def _is_failure(told: dict[str, Any]) -> bool:
    response = told.get("response")
    if isinstance(response, dict):
        return response.get("status_code") != 200
    return "error" in told


def good_line(names: Names, rid: str, reply: dict[str, Any], *, is_json: bool) -> bytes:
    """The answer that `reply`, as the server would have sent it, is."""
    if "custom_id" in names:
        return _openai_line(names, rid, 200, reply)
    (choice,) = reply["choices"]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    line: dict[str, Any] = {**names, "text": text}
    if is_json:
        with contextlib.suppress(ValueError):  # what a limit has cut off is no JSON
            line["value"] = json.loads(text)
    told = {"index", "message", "text", "logprobs"}
    line |= {name: value for name, value in choice.items() if name not in told}
    if choice.get("logprobs") is not None:
        line["logprobs"] = choice["logprobs"]
    return _encoded(line | {"usage": reply["usage"]})


def bad_line(names: Names, rid: str, error: RequestError) -> bytes:
    status, body = envelope(error)
    if "custom_id" in names:
        return _openai_line(names, rid, status, body)
    return _encoded({**names, **body})


def _openai_line(names: Names, rid: str, status: int, body: dict[str, Any]) -> bytes:
    response = {"status_code": status, "request_id": rid, "body": body}
    return _encoded({"id": f"batch_req_{rid}", **names, "response": response, "error": None})


def _encoded(line: dict[str, Any]) -> bytes:
    return msgspec.json.encode(line) + b"\n"
