"""From a body to a program that is ready to run.

Owns: the fields of POST /v1/programs, the limits of a program. Must not know: how a graph is run,
HTTP.
"""

from __future__ import annotations

import marshal
import threading
from dataclasses import dataclass
from typing import Any

import msgspec

from radixserve.errors import InvalidRequest
from radixserve.lang.asking import Settings
from radixserve.lang.compiled.fields import obj, sampling
from radixserve.lang.compiled.graph import Graph
from radixserve.lang.compiled.reading import ANY_SIZE, GraphLimits, read_graph
from radixserve.lang.errors import GraphError
from radixserve.lang.sampling import RunDefaults, run_defaults
from radixserve.native.fields import Name, Seconds, read
from radixserve.programs.following import followers
from radixserve.text.tokenizer import check_text

MAX_RETRIES = 10
MAX_KEPT = 64  # graphs that are kept as they were read
MAX_KEPT_BYTES = 2**16  # of one
_NO_REFERENCES = 2  # a version of marshal in which equal values have equal bytes
CODE = "invalid_program"

_kept: dict[tuple[bytes, GraphLimits], tuple[Graph, dict[str, int]]] = {}
_lock = threading.Lock()

_DEFAULTS = tuple(RunDefaults.__annotations__)


class ProgramBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """program: a graph, as Compiled.graph. arguments: a value for each of its parameters.

    sampling: defaults of its gens, by the names of run(). seed: of the run. timeout_s: for the
    whole program. retries: of a call that fails for a transient reason. stream_text: a stream tells
    texts while they grow, too, not only when they are there. return_calls: tell the whole replies
    of the calls. cache_salt, extra_key, priority: of each call.
    """

    program: dict[str, Any]
    arguments: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    seed: int | None = None
    stream: bool = False
    stream_text: bool = True
    timeout_s: Seconds | None = None
    retries: int = 0
    return_calls: bool = False
    cache_salt: Name = ""
    extra_key: Name = ""
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """graph: the most that one may have. text: characters that values may come to in its texts.
    seconds: longest that a program may take; None: any time.
    """

    graph: GraphLimits = ANY_SIZE
    text: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one body asks for. beside: what stands in the body of each call. followers: see
    followers()."""

    graph: Graph
    followers: dict[str, int]
    arguments: dict[str, Any]
    settings: Settings
    timeout: float | None
    retries: int
    streams: bool
    returns_calls: bool
    beside: dict[str, Any]
    max_text: int | None


def read_job(raw: object, limits: ProgramLimits) -> Job:
    """Takes time in the size of the program. Raises InvalidRequest; what is wrong inside the
    program is named by its JSON pointer."""
    body = read(ProgramBody, raw)
    for name in ("cache_salt", "extra_key"):
        check_text(getattr(body, name), name)
    if not 0 <= body.retries <= MAX_RETRIES:
        raise InvalidRequest(f"retries must be from 0 to {MAX_RETRIES}", param="retries")
    if body.seed is not None and body.seed < 0:
        raise InvalidRequest("seed must be 0 or more", param="seed")
    try:
        graph, behind = _graph(body.program, limits.graph)
        obj(body.arguments, "/arguments", graph.parameters, ())
        obj(body.sampling, "/sampling", (), _DEFAULTS)
        defaults = sampling(body.sampling, "/sampling").over(run_defaults({}))
    except GraphError as error:
        raise as_invalid(error) from None
    return Job(
        graph=graph,
        followers=behind,
        arguments=body.arguments,
        settings=Settings(defaults, body.stream and body.stream_text, body.seed),
        timeout=min((each for each in (body.timeout_s, limits.seconds) if each), default=None),
        retries=body.retries,
        streams=body.stream,
        returns_calls=body.return_calls,
        beside={
            "cache_salt": body.cache_salt,
            "extra_key": body.extra_key,
            "priority": body.priority,
        },
        max_text=limits.text,
    )


def is_kept(raw: object, limits: ProgramLimits) -> bool:
    """Whether the program of a body has been read before, so that read_job takes no time."""
    program = raw.get("program") if isinstance(raw, dict) else None
    return isinstance(program, dict) and (_exact(program), limits.graph) in _kept


def _graph(program: dict[str, Any], limits: GraphLimits) -> tuple[Graph, dict[str, int]]:
    """Reading one takes milliseconds, and a program comes many times."""
    exact = _exact(program)
    found = _kept.get((exact, limits))
    if found is not None:
        return found
    if not 0 < len(exact) <= MAX_KEPT_BYTES:
        return _read(program, limits)
    found = _read(marshal.loads(exact), limits)  # of a copy, which nobody changes
    with _lock:
        _kept[exact, limits] = found
        if len(_kept) > MAX_KEPT:
            del _kept[next(iter(_kept))]
    return found


def _exact(program: dict[str, Any]) -> bytes:
    """Bytes that only an equal program has; none for one that is too deep, or not of JSON."""
    try:
        return marshal.dumps(program, _NO_REFERENCES)
    except ValueError:
        return b""


def _read(program: dict[str, Any], limits: GraphLimits) -> tuple[Graph, dict[str, int]]:
    graph = read_graph(program, "/program", limits)
    return graph, followers(graph)


def as_invalid(error: GraphError) -> InvalidRequest:
    """The 400 that names the place."""
    return InvalidRequest(str(error), param=error.pointer or None, code=CODE)
