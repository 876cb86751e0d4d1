"""Scoring a list of choices behind one prompt.

Owns: which requests score the choices, the shape of the answer. Must not know: how a choice is
picked from its scores (the DSL's methods do that), HTTP.

Each distinct choice is one request that generates nothing: the prompt's ids, then the choice's,
scored from the first id of the choice. The score of a token comes from the logits before it, so a
token at the very start of a prompt has none: its entry is null. The unconditional scores are
those of the choice alone, behind the model's BOS token, also where prompts do not begin with it;
without one the first entry is null.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from radixserve.chunks import Chunk, Request
from radixserve.errors import InvalidRequest
from radixserve.native.calls import Door
from radixserve.native.collect import Output, completed, finished
from radixserve.native.explained import cache_fields
from radixserve.native.reply import prompt_fields
from radixserve.native.request import Call
from radixserve.text.choices import EncodedChoice
from radixserve.text.parts import EncodedPrompt
from radixserve.text.tokenizer import Tokenizer
from radixserve.wire.params import SamplingParams

SCORE_ONLY = SamplingParams(max_new_tokens=0, temperature=0.0)


@dataclass(slots=True)
class Choosing:
    """The requests that score one choice list. Each has its prompt's ids and first scored id."""

    call: Call
    encoded: EncodedPrompt
    choices: tuple[EncodedChoice, ...]
    tokenizer: Tokenizer
    bos: bytes
    unconditional: bool
    requests: list[Request] = field(default_factory=list)
    _places: dict[tuple[bytes, bytes], int] = field(default_factory=dict)

    def score(self, prefix: bytes, choice: bytes) -> None:
        start = max(1, len(prefix) // 4)
        prompt = prefix + choice
        if (prefix, choice) in self._places or start >= len(prompt) // 4:
            return
        first = self.call.requests[0]
        self._places[prefix, choice] = len(self.requests)
        self.requests.append(
            replace(
                first,
                prompt=prompt,
                params=SCORE_ONLY,
                rid=f"{first.rid}~{len(self.requests)}",
                output_logprobs=None,
                prompt_logprobs=0,
                prompt_logprobs_start=start,
            )
        )

    def behind(self, prefix: bytes) -> list[int]:
        """Which requests score a choice behind `prefix`."""
        return [i for (before, _), i in self._places.items() if before == prefix]

    def scores(self, outputs: list[Output], prefix: bytes, choice: bytes) -> list[float | None]:
        """One entry for each id of `choice`; null where no logits stand before it."""
        count = len(choice) // 4
        place = self._places.get((prefix, choice))
        if place is None:
            return [None] * count
        values = outputs[place].prompt_scores.chosen
        return [None] * (count - len(values)) + values


def choosing(
    call: Call, encoded: EncodedPrompt, choices: tuple[EncodedChoice, ...], gateway: Door
) -> Choosing:
    """The requests for the choice list that ends `call`'s parts.

    Raises InvalidRequest where the body asks for output as well.
    """
    if call.body.stream:
        raise InvalidRequest("a choice list is not streamed", param="stream")
    if call.body.tools:
        raise InvalidRequest("a choice list calls nothing: leave tools out", param="tools")
    given = call.body.sampling_params
    names = [
        name
        for name, value in (given.items() if isinstance(given, dict) else ())
        if value is not None and (name, value) != ("max_new_tokens", 0)
    ]
    if names or not isinstance(given, dict):
        raise InvalidRequest(
            f"a choice list generates nothing: leave {' and '.join(names) or 'the list'} out",
            param="sampling_params",
        )
    unconditional = (call.body.input or [{}])[-1].get("unconditional")
    if not isinstance(unconditional, bool | None):
        raise InvalidRequest("unconditional must be true or false", param="input.unconditional")
    tokenizer = gateway.renderer.tokenizer
    bos = _opening(tokenizer)
    planned = Choosing(call, encoded, choices, tokenizer, bos, bool(unconditional))
    common = encoded.ids.astype("<i4").tobytes()
    for choice in choices:
        packed = choice.ids.astype("<i4").tobytes()
        planned.score(common, packed)
        if planned.unconditional:
            planned.score(bos, packed)
    return planned


def _opening(tokenizer: Tokenizer) -> bytes:
    """What a choice alone stands behind: what opens prompts, else the BOS token, else nothing."""
    opening = tokenizer.encode("", opens=True, special=True).tolist()
    if not opening and tokenizer.bos_id is not None:
        opening = [tokenizer.bos_id]
    return np.array(opening, dtype="<i4").tobytes()


async def scored(planned: Choosing, chunks: AsyncIterator[tuple[int, Chunk]]) -> dict[str, Any]:
    """The answer. Raises Cancelled where the call was aborted."""
    outputs = [Output() for _ in planned.requests]
    async for position, chunk in chunks:
        outputs[position].add(chunk)
    usages = [finished(output).usage for output in outputs]
    for output in outputs:
        completed(finished(output))
    common = planned.encoded.ids.astype("<i4").tobytes()
    choices = []
    for choice in planned.choices:
        packed = choice.ids.astype("<i4").tobytes()
        said: dict[str, Any] = {"text": choice.text, "ids": choice.ids.tolist()}
        said["logprobs"] = planned.scores(outputs, common, packed)
        if planned.unconditional:
            said["unconditional_logprobs"] = planned.scores(outputs, planned.bos, packed)
        choices.append(said)
    meta = {
        "id": planned.call.requests[0].rid,
        "prompt": prompt_fields(planned.encoded),
        "prompt_tokens": len(planned.encoded.ids),
        "cached_tokens": min((usages[i].cached_tokens for i in planned.behind(common)), default=0),
        "queue_time": max((finished(output).queue_seconds for output in outputs), default=0.0),
    }
    reports = [finished(output).cache for output in outputs]
    if reports and reports[0] is not None:
        prompt = planned.requests[0].prompt
        meta["cache"] = cache_fields(reports[0], prompt, planned.tokenizer)
    return {"choices": choices, "meta_info": meta}
