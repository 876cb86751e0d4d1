"""One workload against one server, once.

Owns: the order of calls and how many are under way, the check of what came back, the numbers of a
run. Must not know: rounds, tables, what the prompts mean.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jsonschema

from .client import Connection, Endpoint, PeerError, Reply
from .workloads import Call

_CHANCE = 4  # tokens of an answer that may happen to be the text that follows it, for each call


@dataclass(frozen=True, slots=True)
class Run:
    """The numbers of one run; seconds.

    makespan: from the first request to the end of the last answer. ttft, ttft_p99: from a request
    to its first event, median and 99th percentile. itl: median over the calls of the mean time
    between two output tokens, None where every call has one. cached_tokens: of all prompts, None
    where the server does not tell. client_cpu: CPU time that this process used meanwhile. valid:
    share of the answers that fit their schema, None where there is none.
    """

    makespan: float
    output_tokens: int
    ttft: float
    ttft_p99: float
    itl: float | None
    cached_tokens: int | None
    client_cpu: float
    valid: float | None = None

    @property
    def tokens_per_second(self) -> float:
        return self.output_tokens / self.makespan


async def find_model(endpoint: Endpoint, timeout: float) -> Endpoint:
    """The endpoint with the name of the first model it lists. Raises PeerError."""
    connection = Connection(endpoint)
    try:
        models = await connection.get("/v1/models", timeout)
    finally:
        connection.close()
    if not models.get("data"):
        raise PeerError(f"{endpoint.name}: lists no model")
    return replace(endpoint, model=models["data"][0]["id"])


async def run(
    endpoint: Endpoint, calls: Sequence[Call], at_once: int, timeout: float, shared: int
) -> Run:
    """Send the calls in their order, each as soon as what it waits for has been answered.

    timeout: of one call, in seconds. shared: workloads.sharable(calls). Raises PeerError.
    """
    requests = [endpoint.completion(call.prompt, call.tokens, call.schema) for call in calls]
    queue = _Queue(calls)
    replies: list[Reply | None] = [None] * len(calls)

    async def work(connection: Connection) -> None:
        while (index := await queue.next()) is not None:
            replies[index] = await connection.complete(requests[index], timeout)
            queue.answered(index)

    connections = [Connection(endpoint) for _ in range(min(at_once, len(calls)))]
    try:
        for connection in connections:
            await connection.open()
        cpu, start = time.process_time(), time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for connection in connections:
                group.create_task(work(connection))
        makespan, cpu = time.perf_counter() - start, time.process_time() - cpu
    except ExceptionGroup as error:
        raise error.exceptions[0] from error
    finally:
        for connection in connections:
            connection.close()
    got = [reply for reply in replies if reply is not None]
    check(endpoint.name, calls, got, shared)
    return replace(_numbers(got, makespan, cpu), valid=_valid(calls, got))


def _valid(calls: Sequence[Call], replies: Sequence[Reply]) -> float | None:
    fits = [
        _fits(call.schema, reply.text)
        for call, reply in zip(calls, replies)
        if call.schema is not None
    ]
    return sum(fits) / len(fits) if fits else None


def _fits(schema: dict[str, Any], text: str) -> bool:
    try:
        return bool(jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)))
    except ValueError:
        return False


def check(name: str, calls: Sequence[Call], replies: Sequence[Reply], shared: int) -> None:
    """Raises PeerError unless the server did the work that was asked for.

    shared: clearly more cached tokens than that cannot come from this run's own sharing: a cache
    that earlier runs have filled took part.
    """
    if len(replies) != len(calls):
        raise PeerError(f"{name}: {len(replies)} answers to {len(calls)} calls")
    for i, (call, reply) in enumerate(zip(calls, replies)):
        is_short = call.schema is not None and reply.output_tokens < call.tokens
        if reply.output_tokens != call.tokens and not is_short:
            raise PeerError(
                f"{name}: call {i} gave {reply.output_tokens} tokens, {call.tokens} were asked "
                "for: its times cannot be compared (does it know ignore_eos?)"
            )
        if reply.prompt_tokens != len(call.prompt):
            raise PeerError(
                f"{name}: call {i} had {reply.prompt_tokens} prompt tokens, {len(call.prompt)} "
                "were sent: it changes the prompts"
            )
    cached = sum(reply.cached_tokens or 0 for reply in replies)
    if cached > shared * 1.02 + len(calls) * _CHANCE:
        raise PeerError(
            f"{name}: {cached} cached tokens where this run's prompts share {shared}: its "
            "cache knew them already; take another --seed"
        )


class _Queue:
    """Which call to send next; a call is ready when all that it waits for have been answered."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._missing = [len(call.after) for call in calls]
        self._followers: list[list[int]] = [[] for _ in calls]
        for i, call in enumerate(calls):
            for before in call.after:
                self._followers[before].append(i)
        self._ready = deque(i for i, n in enumerate(self._missing) if n == 0)
        self._left = len(calls)
        self._idle: deque[asyncio.Future[None]] = deque()

    async def next(self) -> int | None:
        """Waits for a call to become ready; None when none will."""
        while self._left and not self._ready:
            waiter = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter
        if not self._ready:
            return None
        self._left -= 1
        if not self._left:
            self._wake(len(self._idle))
        return self._ready.popleft()

    def answered(self, index: int) -> None:
        for follower in self._followers[index]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                self._ready.append(follower)
        self._wake(len(self._ready))

    def _wake(self, n: int) -> None:
        for _ in range(min(n, len(self._idle))):
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)


def _numbers(replies: Sequence[Reply], makespan: float, cpu: float) -> Run:
    ttfts = sorted(reply.first - reply.sent for reply in replies)
    gaps = [
        (reply.last - reply.first) / (reply.output_tokens - 1)
        for reply in replies
        if reply.output_tokens > 1
    ]
    cached = [reply.cached_tokens for reply in replies]
    known = [tokens for tokens in cached if tokens is not None]
    return Run(
        makespan=makespan,
        output_tokens=sum(reply.output_tokens for reply in replies),
        ttft=statistics.median(ttfts),
        ttft_p99=ttfts[min(len(ttfts) - 1, int(len(ttfts) * 0.99))],
        itl=statistics.median(gaps) if gaps else None,
        cached_tokens=sum(known) if len(known) == len(cached) else None,
        client_cpu=cpu,
    )
