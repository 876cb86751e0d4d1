"""The child process that compiles grammars: python -m radixserve.grammar.worker [--bare].

Owns: one compilation at a time, read from standard input, answered on standard output. Must not
know: requests, caches. It ends with its parent: end of file on standard input ends it at once, also
in the middle of a compilation, and a parent that has waited long enough kills it.

--bare: start without torch, see bare.py; the process ends where that cannot be.
"""

from __future__ import annotations

import os
import pickle
import queue
import resource
import struct
import sys
import threading
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import psutil

from radixserve.errors import RequestError
from radixserve.grammar import bare, check, rules
from radixserve.wire.params import Constraint

if TYPE_CHECKING:
    import xgrammar

MEMORY_BYTES = 2 * 1024**3
HEAD = 4  # bytes of a message's length
BARE = "--bare"


class Setup(msgspec.Struct, frozen=True):
    token_bytes: list[bytes]
    stop_ids: list[int]
    columns: int
    spare_bytes: int


class Compiled(msgspec.Struct, frozen=True, tag=True):
    """grammar: serialised by the grammar engine. rules: its rules.Grammar, pickled. is_last: see
    Failed.
    """

    grammar: str
    rules: bytes
    is_last: bool = False


class Failed(msgspec.Struct, frozen=True, tag=True):
    """is_last: the process has grown and wants to be replaced: memory that a hard grammar took does
    not come back by itself.
    """

    code: str
    message: str
    param: str | None
    is_last: bool = False


Answer = Compiled | Failed


def send(stream: BinaryIO, body: bytes) -> None:
    """One message: its length, then its bytes."""
    stream.write(struct.pack("<I", len(body)) + body)
    stream.flush()


def size_of(head: bytes) -> int:
    """The length of the message behind `head`."""
    found: int = struct.unpack("<I", head)[0]
    return found


def receive(stream: BinaryIO) -> bytes | None:
    """The next message; None at the end of the stream."""
    head = stream.read(HEAD)
    if len(head) < HEAD:
        return None
    body = stream.read(size_of(head))
    return body if len(body) == size_of(head) else None


def main() -> None:
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()
    if BARE in sys.argv[1:]:
        bare.load()
    import xgrammar

    from radixserve.grammar.vocabulary import Vocabulary

    setup = msgspec.msgpack.decode(jobs.get(), type=Setup)
    vocabulary = Vocabulary(setup.token_bytes, setup.stop_ids, setup.columns)
    compiler = xgrammar.GrammarCompiler(vocabulary.info, max_threads=1, cache_enabled=False)
    limit = _resident() + setup.spare_bytes
    _limit_memory()
    send(out, b"")  # ready
    while True:
        constraint = msgspec.msgpack.decode(jobs.get(), type=Constraint)
        answer = _answer(compiler, constraint)
        answer = msgspec.structs.replace(answer, is_last=_resident() > limit)
        send(out, msgspec.msgpack.encode(answer))


def _read(jobs: queue.SimpleQueue[bytes]) -> None:
    while (body := receive(sys.stdin.buffer)) is not None:
        jobs.put(body)
    os._exit(0)


def _answer(compiler: xgrammar.GrammarCompiler, constraint: Constraint) -> Answer:
    try:
        found = check.grammar(constraint)
        compiled = compiler.compile_grammar(rules.ebnf(found))
        return Compiled(compiled.serialize_json(), pickle.dumps(found))
    except RequestError as error:
        return Failed(error.code, error.message, error.param)
    except MemoryError:
        return Failed("unsupported_schema", "compiling it needs too much memory", constraint.kind)
    except (RuntimeError, ValueError) as error:
        return Failed("unsupported_schema", f"cannot be compiled: {error}", constraint.kind)


def _resident() -> int:
    resident: int = psutil.Process().memory_info().rss
    return resident


def _limit_memory() -> None:
    """Address space from here on; a compilation that wants more ends this process alone."""
    if sys.platform == "linux":
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        limit = used + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
