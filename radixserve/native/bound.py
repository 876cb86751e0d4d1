"""Calls whose outputs are bound: checked before they are submitted, judged when they have ended,
told of field by field.

Owns: the weakening of what cannot be enforced where the client accepts that, the verdict on
finished texts. Must not know: any dialect's shape, how a grammar is made, when one is read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

from radixserve.chunks import Chunk, Request
from radixserve.errors import InvalidRequest
from radixserve.grammar.check import check
from radixserve.grammar.refusal import CODE
from radixserve.grammar.weaken import weaken
from radixserve.native import confidence, verdict
from radixserve.native.calls import Calls, Numbered
from radixserve.native.collect import Output
from radixserve.native.constraint import Wish
from radixserve.native.readings import Readings
from radixserve.wire.messages import FinishReason
from radixserve.wire.params import Constraint

_readings = Readings()


def start(
    calls: Calls,
    requests: Sequence[Request],
    name: str,
    wishes: Sequence[Wish | None],
    *,
    whole: bool = False,
) -> Numbered:
    """calls.start() of requests[i] under wishes[i]. whole: see Request.is_whole.

    Raises InvalidRequest before the first chunk where a wish cannot be granted. Outputs of a judged
    wish end with finish.violations; other outputs of the call wait while one is judged. Those of a
    wish that tells of fields end with finish.fields.
    """
    if whole:
        requests = [replace(each, is_whole=True) for each in requests]
    if not any(wishes):
        return calls.start(requests, name)
    return _start(calls, requests, name, wishes)


async def _start(
    calls: Calls, requests: Sequence[Request], name: str, wishes: Sequence[Wish | None]
) -> Numbered:
    with calls.coming({name, *(request.rid for request in requests)}):
        granted = {each: await _granted(each) for each in dict.fromkeys(wishes) if each is not None}
        ready = [
            request if wanted is None else replace(request, constraint=granted[wanted])
            for request, wanted in zip(requests, wishes, strict=True)
        ]
        for i, wanted in enumerate(wishes):
            if wanted is not None and wanted.tells_fields:
                await _readings.found(_followed, granted[wanted])
                ready[i] = _with_scores(ready[i])
        judge, teller = _Judge(wishes), _Teller(calls, ready, wishes, requests, name)
        told = teller.told(calls.start(ready, name))
        try:
            async with contextlib.aclosing(told) as chunks:
                async for position, chunk in chunks:
                    yield position, await judge.seen(position, chunk)
        except InvalidRequest as error:
            raise _named(error, granted) from error


async def _granted(wanted: Wish) -> Constraint:
    """What the engine is to enforce."""
    try:
        return await _readings.found(check, wanted.constraint)
    except InvalidRequest as error:
        if not wanted.is_judged or error.code != CODE:
            raise wanted.renamed(error) from None
        fault = await verdict.fault_of(wanted.schema)
        if fault is not None:
            message = f"{error.message}; no validator reads it either: {fault}"
            raise InvalidRequest(message, param=wanted.field, code=error.code) from None
    try:
        return await _readings.found(weaken, wanted.constraint)
    except InvalidRequest as error:
        raise wanted.renamed(error) from None


def _named(error: InvalidRequest, wishes: dict[Wish, Constraint]) -> InvalidRequest:
    for each in wishes:
        renamed = each.renamed(error)
        if renamed is not error:
            return renamed
    return error


class _Judge:
    """Texts of judged outputs as they grow; at the end of each its violations."""

    def __init__(self, wishes: Sequence[Wish | None]) -> None:
        self._wishes = wishes
        self._texts: dict[tuple[int, int], list[str]] = {}

    async def seen(self, position: int, chunk: Chunk) -> Chunk:
        wanted = self._wishes[position]
        if wanted is None or not wanted.is_judged:
            return chunk
        place = (position, chunk.index)
        self._texts.setdefault(place, []).append(chunk.text)
        if chunk.finish is None:
            return chunk
        text = "".join(self._texts.pop(place))
        if chunk.finish.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return chunk
        found = await verdict.violations(wanted.schema, text)
        return replace(chunk, finish=replace(chunk.finish, violations=found))


def _followed(constraint: Constraint) -> Constraint:
    confidence.check_followed(constraint)
    return constraint


def _with_scores(request: Request) -> Request:
    """With the log-probabilities that fields need; those a client wants have them all."""
    if request.output_logprobs is not None:
        return request
    return replace(request, output_logprobs=0, sampled_logprobs=True)


class _Teller:
    """Ids and log-probabilities of outputs as they grow; at the end of each its fields.

    asked: the requests as the client meant them, so that it gets no log-probabilities else.
    """

    def __init__(
        self,
        calls: Calls,
        ready: Sequence[Request],
        wishes: Sequence[Wish | None],
        asked: Sequence[Request],
        name: str,
    ) -> None:
        self._calls = calls
        self._ready = ready
        self._wishes = wishes
        self._asked = asked
        self._name = name
        self._outputs: dict[tuple[int, int], Output] = {}
        self._scoring: dict[asyncio.Task[Chunk], int] = {}

    async def told(self, chunks: Numbered) -> Numbered:
        """`chunks`; the last of an output comes when its fields are known, and what is scored for
        several outputs is scored together."""
        try:
            async with contextlib.aclosing(chunks):
                async for position, chunk in chunks:
                    fresh = self._heard(position, chunk)
                    if fresh is not None:
                        yield position, fresh
                    for task in [task for task in self._scoring if task.done()]:
                        yield self._scoring.pop(task), task.result()
            while self._scoring:
                done, _ = await asyncio.wait(self._scoring, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield self._scoring.pop(task), task.result()
        finally:
            for task in self._scoring:
                task.cancel()
            await asyncio.gather(*self._scoring, return_exceptions=True)

    def _heard(self, position: int, chunk: Chunk) -> Chunk | None:
        """`chunk`; None where its fields are to be found first."""
        wanted = self._wishes[position]
        if wanted is None or not wanted.tells_fields:
            return chunk
        output = self._outputs.setdefault((position, chunk.index), Output())
        output.add(chunk)
        if self._asked[position].output_logprobs is None:
            chunk = replace(chunk, logprobs=None)
        finish = chunk.finish
        if finish is None or finish.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return chunk
        self._scoring[asyncio.create_task(self._scored(position, chunk, output))] = position
        return None

    async def _scored(self, position: int, chunk: Chunk, output: Output) -> Chunk:
        said = confidence.Said(tuple(output.ids), tuple(output.chosen))
        request = self._ready[position]
        request = replace(request, rid=f"{request.rid}~{chunk.index}")
        assert chunk.finish is not None
        found = await confidence.fields_of(
            self._calls, request, said, self._name, is_cut=chunk.finish.truncated
        )
        return replace(chunk, finish=replace(chunk.finish, fields=found))
