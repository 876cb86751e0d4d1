"""What this front has in flight: submitting requests within the model's limits, aborting them.

Owns: the rids in flight, the fit of a request to the context, several prompts as one stream.
Must not know: any dialect's shape, HTTP, who waits for the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence, Set
from contextvars import Context, copy_context
from dataclasses import replace
from typing import Protocol

import msgspec

from radixserve.chunks import Chunk, Request
from radixserve.errors import ContextTooLong, InvalidRequest
from radixserve.text.renderer import Renderer
from radixserve.wire.cache import CacheStats, TreeNode
from radixserve.wire.messages import Gauges, Ready
from radixserve.wire.params import SamplingParams

MAX_RID = 256
MAX_AHEAD = 64

Chunks = AsyncGenerator[Chunk, None]
Numbered = AsyncGenerator[tuple[int, Chunk], None]


class Door(Protocol):
    """The gateway, as far as dialects use it; `radixserve.gateway.Gateway` is the one."""

    @property
    def alive(self) -> bool: ...
    @property
    def renderer(self) -> Renderer: ...
    @property
    def info(self) -> Ready: ...
    @property
    def model_name(self) -> str: ...
    def submit(self, request: Request) -> Chunks: ...
    def abort(self, rid: str) -> None: ...
    def end_program(self, program: str, namespace: str) -> None: ...
    async def flush(self) -> int: ...
    async def gauges(self) -> Gauges: ...
    async def cache_stats(self) -> CacheStats: ...
    async def cache_tree(
        self, namespace: str | None, depth: int, limit: int
    ) -> tuple[CacheStats, list[TreeNode]]: ...


def new_rid() -> str:
    return uuid.uuid4().hex


class Calls:
    """Requests in flight. A call is one or several prompts; its name is the client's rid."""

    def __init__(self, gateway: Door) -> None:
        self._gateway = gateway
        self._live: dict[str, str] = {}
        self._coming: Counter[str] = Counter()
        self._early: dict[str, list[Context]] = {}  # aborts of those

    def start(self, requests: Sequence[Request], name: str) -> Numbered:
        """Chunks of all requests as (position in `requests`, chunk), in order for each.

        All are submitted together. Nothing is yielded before every one is accepted, so that a
        refusal of any comes first. The first error ends the others. Closing aborts what still
        runs. Each request has a rid of its own; abort(name) reaches all.
        """
        if len(requests) == 1:
            return _alone(self._one(requests[0], name))
        return _accepted(_together([self._one(r, name) for r in requests]), len(requests))

    @contextlib.contextmanager
    def coming(self, names: Set[str]) -> Iterator[None]:
        """Calls or requests of these names are prepared and started within. What aborts one before
        it is submitted holds for it then, so that it ends before anything is computed for it."""
        self._coming.update(names)
        try:
            yield
        finally:
            for name in names:
                self._coming[name] -= 1
                if not self._coming[name]:
                    del self._coming[name]
                    self._early.pop(name, None)

    @property
    def gateway(self) -> Door:
        return self._gateway

    def abort(self, name: str) -> None:
        """Abort the call or the request of that name; unknown names are ignored."""
        found = [rid for rid, call in self._live.items() if name in (rid, call)]
        for rid in found:
            self._gateway.abort(rid)
        if not found:
            self._abort_coming(name)

    def abort_all(self) -> None:
        for rid in list(self._live):
            self._gateway.abort(rid)
        for name in self._coming:
            self._abort_coming(name)

    def _abort_coming(self, name: str) -> None:
        """Whether whoever asks may do so is for the gateway to say, once it knows the request; so
        it is asked then in the context of now."""
        if name in self._coming:
            self._early.setdefault(name, []).append(copy_context())

    async def _one(self, request: Request, name: str) -> Chunks:
        rid = request.rid
        if rid in self._live:
            raise InvalidRequest(f"rid {rid!r} is in flight already", param="rid")
        request = _fitted(request, self._gateway)
        self._live[rid] = name
        asked = [early for known in {rid, name} for early in self._early.get(known, ())]
        for each in asked:
            # Soon: when the gateway has the request.
            asyncio.get_running_loop().call_soon(self._gateway.abort, rid, context=each)
        try:
            async with contextlib.aclosing(self._gateway.submit(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            del self._live[rid]


def _fitted(request: Request, gateway: Door) -> Request:
    """The request with max_new_tokens cut to what context and KV pool have room for."""
    params = request.params
    _check_vocabulary(params, vocabulary(gateway))
    prompt_tokens = len(request.prompt) // 4
    if prompt_tokens == 0:
        raise InvalidRequest("the prompt is empty", param="prompt")
    room = room_of(gateway)
    if prompt_tokens + min(1, params.max_new_tokens) > room:
        owner = "context" if room == gateway.info.context_len else "KV pool"
        raise ContextTooLong(
            f"the prompt has {prompt_tokens} tokens; the {owner} holds {room}, "
            f"the output included. Shorten the prompt",
            param="prompt",
        )
    if prompt_tokens + params.max_new_tokens <= room:
        return request
    bound = room - prompt_tokens
    least = min(params.min_new_tokens, bound)
    return replace(
        request, params=msgspec.structs.replace(params, max_new_tokens=bound, min_new_tokens=least)
    )


def room_of(gateway: Door) -> int:
    """Tokens that context and KV pool hold for one request, output included."""
    info = gateway.info
    return min(size for size in (info.context_len, info.kv_tokens, 2**31 - 1) if size > 0)


def vocabulary(gateway: Door) -> int:
    """Ids below this are tokens of both the model and its tokenizer."""
    known = gateway.renderer.tokenizer.vocab_size
    return min(known, gateway.info.vocab_size or known)


def _check_vocabulary(params: SamplingParams, vocab_size: int) -> None:
    for name, ids in (("stop_token_ids", params.stop_token_ids), ("logit_bias", params.logit_bias)):
        for token in ids:
            if token >= vocab_size:
                raise InvalidRequest(
                    f"{name}: {token} is no token; ids are below {vocab_size}", param=name
                )


async def _alone(stream: Chunks) -> Numbered:
    """The one stream of a call: no task and no queue stand between it and its reader."""
    async with contextlib.aclosing(stream):
        async for chunk in stream:
            yield 0, chunk


async def _accepted(chunks: Numbered, count: int) -> Numbered:
    """`chunks`, held back until each of `count` streams has sent one."""
    held: list[tuple[int, Chunk]] = []
    unheard = set(range(count))
    try:
        async for item in chunks:
            unheard.discard(item[0])
            held.append(item)
            if not unheard:
                for early in held:
                    yield early
                held.clear()
    finally:
        await chunks.aclose()


async def _together(
    streams: Sequence[Chunks],
) -> Numbered:
    queue: asyncio.Queue[tuple[int, Chunk | None]] = asyncio.Queue()
    ahead = asyncio.Semaphore(MAX_AHEAD + len(streams))

    async def pump(position: int, stream: Chunks) -> None:
        try:
            async with contextlib.aclosing(stream):
                async for chunk in stream:
                    await ahead.acquire()
                    queue.put_nowait((position, chunk))
        finally:
            queue.put_nowait((position, None))

    tasks = [asyncio.create_task(pump(i, stream)) for i, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            position, chunk = await queue.get()
            if chunk is None:
                await tasks[position]
                running -= 1
            else:
                ahead.release()
                yield position, chunk
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
