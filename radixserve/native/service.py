"""The native dialect over a gateway: a body in, an answer or a stream of answers out.

Owns: the two verbs generate and stream. Must not know: HTTP, which loop it runs on.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from radixserve.errors import InvalidRequest
from radixserve.native import bound
from radixserve.native.apart import apart
from radixserve.native.calls import Calls, Door, Numbered
from radixserve.native.choose import Choosing, choosing, scored
from radixserve.native.reply import Answer
from radixserve.native.request import Call, namespace, prepare


class NativeService:
    """Answers native bodies. calls: what is in flight, shared with other dialects."""

    def __init__(self, gateway: Door) -> None:
        self.gateway = gateway
        self.calls = Calls(gateway)

    async def generate(
        self, body: object, *, is_brief: bool = False, follows: int = 0
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """The whole answer: a list where a list came in or n > 1, ordered by prompt, then output.

        is_brief: there is little to tokenise and to check, so that a thread would take longer.
        follows: see Generate. Raises RequestError. Cancelling aborts what runs.
        """
        with self.calls.coming(_names(body)):
            return await self._answered(body, is_brief=is_brief, follows=follows)

    async def stream(self, body: object) -> AsyncGenerator[dict[str, Any], None]:
        """Answers so far, one for each chunk with something new; `index` where there are several.

        What is told of a prompt stands in two of them, see Answer.so_far. The first comes when
        nothing can refuse the call any more; it may be empty. Raises RequestError. Closing aborts
        what runs.
        """
        with self.calls.coming(_names(body)):
            async with contextlib.aclosing(self._streamed(body)) as answers:
                async for each in answers:
                    yield each

    def abort(self, rid: str) -> None:
        """End the call with that rid; what it has so far is its answer. One that is still being
        prepared ends when it has been. Unknown rids: nothing."""
        self.calls.abort(rid)

    def abort_all(self) -> None:
        self.calls.abort_all()

    def end_program(self, program: str, *, cache_salt: str = "", extra_key: str = "") -> None:
        """The program makes no more calls; cache_salt, extra_key: of those that it made."""
        self.gateway.end_program(program, namespace(cache_salt, extra_key))

    async def _answered(
        self, body: object, *, is_brief: bool, follows: int
    ) -> dict[str, Any] | list[dict[str, Any]]:
        call, planned = self._prepare(body) if is_brief else await apart(body, self._prepare, body)
        if planned is not None:
            async with contextlib.aclosing(self.calls.start(planned.requests, call.name)) as chunks:
                return await scored(planned, chunks)
        answers = _answers(call, self.gateway)
        async with contextlib.aclosing(self._started(call, follows)) as chunks:
            async for position, chunk in chunks:
                answers[position][chunk.index].add(chunk)
        whole = [answer.whole() for row in answers for answer in row]
        return whole if call.batched or len(whole) > 1 else whole[0]

    async def _streamed(self, body: object) -> AsyncGenerator[dict[str, Any], None]:
        call, planned = await apart(body, self._prepare, body)
        if planned is not None:
            raise InvalidRequest("a choice list is not streamed", param="stream")
        answers = _answers(call, self.gateway)
        several = call.batched or len(answers[0]) > 1
        async with contextlib.aclosing(self._started(call)) as chunks:
            async for position, chunk in chunks:
                row = answers[position]
                held = [answer for answer in row if answer.is_held]
                row[chunk.index].add(chunk)
                for answer in (row[chunk.index], *held):
                    if not answer.is_held:
                        news = answer.so_far()
                        yield {**news, "index": answer.index} if several else news

    def _started(self, call: Call, follows: int | None = None) -> Numbered:
        """follows: of a call whose answer is told as a whole."""
        requests = call.requests
        if follows:
            requests = (replace(requests[0], follows=follows), *requests[1:])
        whole = follows is not None
        return bound.start(self.calls, requests, call.name, call.wishes, whole=whole)

    def _prepare(self, body: object) -> tuple[Call, Choosing | None]:
        call = prepare(body, self.gateway)
        encoded = call.prompts[0].encoded
        if encoded is None or encoded.choices is None:
            return call, None
        return call, choosing(call, encoded, encoded.choices, self.gateway)


def _names(body: object) -> set[str]:
    """What an abort may call it before its body has been read."""
    rid = body.get("rid") if isinstance(body, dict) else None
    return {each for each in (rid if isinstance(rid, list) else [rid]) if isinstance(each, str)}


def _answers(call: Call, gateway: Door) -> list[list[Answer]]:
    """For each prompt its n answers; index counts through them all."""
    answers: list[list[Answer]] = []
    index, renderer = 0, gateway.renderer
    for position, request in enumerate(call.requests):
        row: list[Answer] = []
        for _ in range(request.params.n):
            first = row[0] if row else None
            row.append(
                Answer(call, position, index, renderer.tokenizer, renderer.speech.syntax, first)
            )
            index += 1
        answers.append(row)
    return answers
