"""What a batch has finished, kept in a file: a batch that crashed goes on where it was.

Owns: the file. One JSON line for each finished item: a fingerprint of its arguments, and its state
pickled. So it is to be read only where it can be trusted like code. A line cut short by a crash
counts as not written. Must not know: batches, how a program runs.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

from radixserve.lang.errors import ProgramError
from radixserve.lang.state import ProgramState
from radixserve.lang.work import Work

FORMAT = 1


class Checkpoint:
    """program: what the items are arguments of; a file of another program is refused.

    Items are known by their arguments, so they may be reordered or added to. Equal items are told
    apart by their number.
    """

    def __init__(self, path: str | Path, program: str) -> None:
        self._path = Path(path)
        self._header = {"radixserve_checkpoint": FORMAT, "program": program}
        self._found: dict[str, deque[str]] = defaultdict(deque)
        end = self._load()
        self._file = self._path.open("r+b" if end else "wb")
        self._file.seek(end)
        self._file.truncate()
        if not end:
            self._write(self._header)

    def key(self, work: Work) -> str:
        """Raises ProgramError for arguments that cannot be pickled."""
        try:
            data = pickle.dumps((work.args, sorted(work.kwargs.items())), protocol=4)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ProgramError(
                f"checkpoint= needs arguments that can be pickled: {error}"
            ) from None
        return hashlib.sha256(data).hexdigest()

    def restored(self, key: str, work: Work) -> ProgramState | None:
        """The state of a finished item; each is given out once."""
        if not self._found[key]:
            return None
        kept = pickle.loads(base64.b64decode(self._found[key].popleft()))
        run = work.open_run(True)
        run.root.interpreter.restore(kept["state"])
        run.root.conclude(kept["result"], None)
        return ProgramState(run, run.root, outside=True)

    def keep(self, key: str, state: ProgramState) -> None:
        """Written before the item counts as done. Raises ProgramError for what cannot be kept."""
        kept: dict[str, Any] = {
            "state": state._branch.interpreter.snapshot(),
            "result": state.ret_value,
        }
        try:
            data = pickle.dumps(kept, protocol=4)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ProgramError(
                f"checkpoint= needs variables and results that can be pickled: {error}"
            ) from None
        self._write({"item": key, "state": base64.b64encode(data).decode()})

    def close(self) -> None:
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()

    def _load(self) -> int:
        """Read what is there; the offset behind its last whole line."""
        if not self._path.exists():
            return 0
        end = 0
        with self._path.open("rb") as file:
            for number, raw in enumerate(file):
                line = _parsed(raw)
                if line is None:
                    break
                if number == 0 and line != self._header:
                    raise ValueError(f"{self._path} is no checkpoint of {self._header['program']}")
                if number > 0:
                    self._found[line["item"]].append(line["state"])
                end += len(raw)
            file.seek(0)
            if not end and not json.dumps(self._header).encode().startswith(file.read(4096)):
                raise ValueError(f"{self._path} is no checkpoint")
        return end


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(raw) if raw.endswith(b"\n") else None
    except ValueError:
        return None
    return line if isinstance(line, dict) else None
