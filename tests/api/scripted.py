"""A gateway whose model says what the test wrote, one token at a time.

It keeps the promises of radixserve.gateway.Gateway: the first chunk means accepted, n outputs of
one request interleave, stop strings are cut as the engine cuts them, closing a stream aborts.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncGenerator, Sequence

import httpx
import numpy as np

from radixserve.api.app import create_app
from radixserve.chunks import Chunk, OutputText, Request
from radixserve.config.schema import Config, HttpConfig, ModelConfig, TextConfig
from radixserve.errors import EngineDead, RequestError
from radixserve.text.chat import ChatTemplate
from radixserve.text.files import read_folder
from radixserve.text.renderer import Renderer
from radixserve.text.tokenizer import Tokenizer
from radixserve.wire.cache import CacheReport, CacheStats, TreeNode
from radixserve.wire.messages import (
    Finished,
    FinishReason,
    FromEngine,
    Gauges,
    Logprobs,
    PromptScores,
    Ready,
    Started,
    TokenOut,
)
from tests.tiny_tokenizer import make_tokenizer

MODEL = "org/scripted"


def make_renderer(folder: pathlib.Path, **options) -> Renderer:
    files = read_folder(make_tokenizer(folder, **options))
    return Renderer(Tokenizer(files), ChatTemplate.load(files), TextConfig())


def logprob(token: int) -> float:
    """The score that the script gives to a token, wherever it stands."""
    return -(1 + token % 13) / 8


class ScriptedGateway:
    """outputs: what output i says, as text or ids; the last holds for all further ones. After it
    comes an end token. context_len, kv_tokens: as the model's Ready would tell."""

    def __init__(
        self,
        renderer: Renderer,
        outputs: Sequence[str | list[int]] = ("the quick brown fox",),
        *,
        context_len: int = 512,
        kv_tokens: int = 100_000,
    ) -> None:
        self.renderer = renderer
        self.outputs = outputs
        self.model_name = MODEL
        self.alive = True
        self.info = Ready(
            model=MODEL,
            context_len=context_len,
            kv_tokens=kv_tokens,
            vocab_size=renderer.tokenizer.vocab_size + 8,
            dtype="float32",
        )
        self.requests: list[Request] = []
        self.closed_early: list[str] = []
        self.ended_programs: list[tuple[str, str]] = []  # id, namespace
        self.running = 0
        self.refusal: RequestError | EngineDead | None = None
        self.failure: Exception | None = None  # raised after the second token
        self.gate: asyncio.Event | None = None  # waited for before the third token
        self.at_gate = 0  # requests that have come to it
        self.start_gate: asyncio.Event | None = None  # waited for before acceptance
        self.score_delay = 0  # steps before each piece of prompt scores
        self.flushed = 0
        self.truncated = False  # what every finish says
        self.forced_tokens = 0
        self._asked_to_end: set[str] = set()
        self._seen: list[tuple[str, bytes]] = []

    async def submit(self, request: Request) -> AsyncGenerator[Chunk, None]:
        if not self.alive:
            raise EngineDead("the engine process ended")
        self.requests.append(request)
        self.running += 1
        cached = self._cached(request)
        finished = False
        try:
            if self.start_gate is not None:
                await self.start_gate.wait()
            if self.refusal is not None:
                raise self.refusal
            async with contextlib.aclosing(self._steps(request, cached)) as steps:
                async for chunk in steps:
                    yield chunk
            finished = True
        finally:
            self.running -= 1
            if not finished:
                self.closed_early.append(request.rid)

    async def _steps(self, request: Request, cached: int) -> AsyncGenerator[Chunk, None]:
        count = request.params.n
        texts = [OutputText(i, self.renderer, request) for i in range(count)]
        scripts = [self._events(request, i, cached) for i in range(count)]
        for index in range(count):
            yield texts[index].take([Started(request.rid)])
        step = 0
        while any(scripts):
            if step == 2:
                await self._before_third(request.rid)
            for index, script in enumerate(scripts):
                if script and request.rid in self._asked_to_end:
                    script[:] = [[self._end(request, FinishReason.ABORT, step, cached)]]
                if script:
                    yield texts[index].take(script.pop(0))
            step += 1
            await asyncio.sleep(0)

    async def _before_third(self, rid: str) -> None:
        self.at_gate += 1
        while self.gate is not None and not self.gate.is_set():
            if rid in self._asked_to_end:
                return
            await asyncio.sleep(0.002)
        if self.failure is not None:
            raise self.failure

    def abort(self, rid: str) -> None:
        self._asked_to_end.add(rid)

    def end_program(self, program: str, namespace: str) -> None:
        self.ended_programs.append((program, namespace))

    async def flush(self) -> int:
        self.flushed += 1
        return 48

    async def gauges(self) -> Gauges:
        return Gauges(running=self.running, kv_tokens=self.info.kv_tokens, steps=7)

    async def cache_stats(self) -> CacheStats:
        return CacheStats(**dict.fromkeys(CacheStats.__struct_fields__, 1))

    async def cache_tree(self, namespace, depth, limit):
        self.asked_tree = (namespace, depth, limit)
        rows = [
            TreeNode(parent=None, namespace="a"),
            TreeNode(parent=0, tokens=20, ids=[300, 301], users=1, used=9, is_warm=True),
            TreeNode(parent=1, tokens=1, ids=[302], left_out=3),
        ]
        return await self.cache_stats(), rows

    def _cached(self, request: Request) -> int:
        prompt = request.prompt
        best = 0
        for namespace, seen in self._seen:
            if namespace == request.namespace:
                n = min(len(seen), len(prompt) - 4)
                same = next((i for i in range(n) if seen[i] != prompt[i]), n)
                best = max(best, same // 4)
        self._seen.append((request.namespace, prompt))
        return best

    def _events(self, request: Request, index: int, cached: int) -> list[list[FromEngine]]:
        """Events of one output, a list for each step. Outputs after the first find the prompt that
        the first one computed."""
        cached = cached if index == 0 else len(request.prompt) // 4 - 1
        said = self.outputs[min(index, len(self.outputs) - 1)]
        tokenizer = self.renderer.tokenizer
        if isinstance(said, str):
            said = tokenizer.encode(said, opens=False, special=False).tolist()
        params = request.params
        steps: list[list[FromEngine]] = []
        spelt = b""
        end: dict[str, object] | None = None
        for token in [*said, 2]:
            if len(steps) == params.max_new_tokens:
                break
            scores = self._scores([token], request)
            steps.append([TokenOut(request.rid, [token], scores, None if steps else cached)])
            spelt += tokenizer.bytes_of(token)
            end = self._stopped(request, token, spelt)
            if end is not None:
                break
        reason = FinishReason.LENGTH if end is None else FinishReason.STOP
        last = self._end(request, reason, len(steps), cached, **(end or {}))
        if not steps:
            steps.append([])
        steps[-1].append(last)
        if request.prompt_logprobs is not None and index == 0:
            late: list[list[FromEngine]] = [[] for _ in range(self.score_delay)]
            steps[:0] = [each for piece in self._prompt_scores(request) for each in (*late, piece)]
        return steps

    def _stopped(self, request: Request, token: int, spelt: bytes) -> dict[str, object] | None:
        params = request.params
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else {2})
        if token in ends:
            return {"matched": token}
        found = [(spelt.find(stop.encode()), stop) for stop in params.stop]
        found = [(at, stop) for at, stop in found if at >= 0]
        if not found:
            return None
        at, stop = min(found)
        return {"matched": stop, "kept_bytes": at}

    def _end(
        self, request: Request, reason: FinishReason, count: int, cached: int, **more
    ) -> Finished:
        return Finished(
            rid=request.rid,
            reason=reason,
            prompt_tokens=len(request.prompt) // 4,
            completion_tokens=count,
            cached_tokens=cached,
            computed_tokens=len(request.prompt) // 4 - cached,
            truncated=self.truncated,
            forced_tokens=self.forced_tokens,
            embedding=self._embedding(request),
            cache=CacheReport(matched=cached, reason="evicted", other=7, lost=1)
            if request.explain_cache
            else None,
            **more,
        )

    @staticmethod
    def _embedding(request: Request) -> bytes:
        """Of a prompt: [its length, 2 where the last token is asked for, else 1, 2]."""
        if request.pooling is None:
            return b""
        kind = 2 if request.pooling == "last" else 1
        return np.asarray([len(request.prompt) // 4, kind, 2], "<f4").tobytes()

    def _scores(self, ids: list[int], request: Request) -> Logprobs | None:
        if request.output_logprobs is None:
            return None
        return self._logprobs(ids, request.output_logprobs, request.logprob_ids)

    def _logprobs(self, ids: list[int], best: int, named: tuple[int, ...]) -> Logprobs:
        """The best are the token itself and those after it."""
        top = [[*((token + i) % 400 for i in range(best)), *named] for token in ids]
        return Logprobs(
            [logprob(token) for token in ids],
            top,
            [[logprob(token) for token in row] for row in top],
        )

    def _prompt_scores(self, request: Request) -> list[list[FromEngine]]:
        """In two pieces, as chunked prefill sends them."""
        ids = memoryview(request.prompt).cast("i").tolist()
        start = request.prompt_logprobs_start
        middle = (start + len(ids)) // 2
        assert request.prompt_logprobs is not None
        best = request.prompt_logprobs
        pieces = [(start, ids[start:middle]), (middle, ids[middle:])]
        return [
            [PromptScores(request.rid, at, self._logprobs(piece, best, request.logprob_ids))]
            for at, piece in pieces
            if piece
        ]


def client(gateway: ScriptedGateway, **http) -> httpx.AsyncClient:
    """A client of an app over `gateway`, in this event loop."""
    config = Config(model=ModelConfig(model=MODEL), http=HttpConfig(**http))
    transport = httpx.ASGITransport(create_app(gateway, config))
    return httpx.AsyncClient(transport=transport, base_url="http://test", timeout=20)
