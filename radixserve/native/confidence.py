"""How sure the model was of each field of an output that was bound.

Owns: which tokens count to which field, the requests that score what else could have stood there,
the shape of what is told. Must not know: any dialect, how a grammar is followed.

A token counts to every value of which it spells a part. Alternatives are scored as the model's own
tokens spell them, behind the tokens that all of them share; the cache has these, so each costs its
own tokens alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from radixserve.chunks import Request
from radixserve.errors import InvalidRequest
from radixserve.grammar import alternatives
from radixserve.grammar.check import grammar
from radixserve.grammar.track import Track
from radixserve.native.calls import Calls, room_of
from radixserve.native.choose import SCORE_ONLY
from radixserve.native.collect import Output, completed, finished
from radixserve.native.places import Place, places
from radixserve.text.tokenizer import Tokenizer
from radixserve.wire.params import Constraint
from radixserve.wire.reasoning import Follower, Reasoning

MAX_SCORED = 512  # alternatives of one output, those of the first fields
_JSON = ("json_schema", "json_object")

# A track is for one thread at a time.
_for_tracks = ThreadPoolExecutor(1, thread_name_prefix="fields")

Fields = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Said:
    """One finished output. logprobs: of each of its ids, 0 for one that was not sampled."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(slots=True)
class _Choice:
    """The alternatives of one field: the first `shared` ids of the output stand before each."""

    pointer: str
    shared: int
    values: list[Any]
    ids: list[list[int]]
    scores: list[float] = field(default_factory=list)

    def told(self) -> list[dict[str, Any]]:
        best = max(self.scores)
        weights = [math.exp(score - best) for score in self.scores]
        return [
            {"value": value, "probability": weight / sum(weights), "logprob": score}
            for value, weight, score in zip(self.values, weights, self.scores)
        ]


def check_followed(constraint: Constraint) -> None:
    """Raise InvalidRequest where outputs under `constraint` cannot be followed. Takes time: call in
    a thread."""
    if constraint.kind == "structural_tag" or _track(constraint) is None:
        raise InvalidRequest(
            f"field_logprobs is not possible for this {constraint.kind}", param="field_logprobs"
        )


async def fields_of(
    calls: Calls, request: Request, said: Said, name: str, *, is_cut: bool
) -> Fields:
    """What is known of each field of the output, by JSON pointer; "" is the whole of it.

    name: of the call that the scoring belongs to. is_cut: a limit brought the end of the output,
    which the model has not chosen; it is scored as if it had. {} where the output is no JSON, as it
    may be when it was aborted. Raises RequestError.
    """
    tokenizer = calls.gateway.renderer.tokenizer
    if is_cut and not all(said.logprobs):
        said = await _with_ending(calls, request, said, name)
    loop = asyncio.get_running_loop()
    found, choices = await loop.run_in_executor(_for_tracks, _read, request, said, tokenizer)
    room = room_of(calls.gateway) - len(request.prompt) // 4
    choices = [c for c in choices if c.shared + max(map(len, c.ids)) <= room]
    await _score(calls, request, said, choices, name)
    for choice in choices:
        found[choice.pointer]["alternatives"] = choice.told()
    return found


@lru_cache(maxsize=16)
def _track(constraint: Constraint) -> Track | None:
    return Track.of(grammar(constraint))


def _read(request: Request, said: Said, tokenizer: Tokenizer) -> tuple[Fields, list[_Choice]]:
    """The fields without their alternatives, and those that have some."""
    constraint = request.constraint
    assert constraint is not None
    track = _track(constraint)
    assert track is not None
    reading = _Reading(request.reasoning, said, tokenizer, track)
    is_json = constraint.kind in _JSON
    try:
        found = places(reading.text) if is_json else [Place("", 0, len(reading.text), True, False)]
    except ValueError:
        return {}, []
    fields = {place.pointer: reading.field(place) for place in found}
    choices: list[_Choice] = []
    left = MAX_SCORED
    for place in found:
        choice = reading.choice(place, is_json=is_json) if place.is_leaf else None
        if choice is not None and len(choice.ids) <= left:
            left -= len(choice.ids)
            choices.append(choice)
    return fields, choices


class _Reading:
    """The answer of one output, beside its tokens."""

    def __init__(
        self, reasoning: Reasoning | None, said: Said, tokenizer: Tokenizer, track: Track
    ) -> None:
        self._tokenizer = tokenizer
        self._track = track
        self._ids = said.ids
        self._first = _first_of_answer(reasoning, said.ids, tokenizer)
        pieces = [tokenizer.bytes_of(token) for token in said.ids[self._first :]]
        self.text = b"".join(pieces)
        self._ends = list(accumulate(map(len, pieces)))
        self._starts = [end - len(piece) for end, piece in zip(self._ends, pieces)]
        was_choice = alternatives.choices(track.start, pieces)
        self._counts = [0, *accumulate(map(int, was_choice))]
        values = zip(said.logprobs[self._first :], was_choice, strict=True)
        self._sums = [0.0, *accumulate(value if counts else 0.0 for value, counts in values)]

    def field(self, place: Place) -> dict[str, Any]:
        """What ends a number, or the whole output, is a choice too, of what comes behind it."""
        reach = place.end + (place.is_number or not place.pointer)
        low = bisect_right(self._ends, place.start)
        high = bisect_left(self._starts, reach)
        return {
            "logprob": self._sums[high] - self._sums[low],
            "tokens": self._counts[high] - self._counts[low],
        }

    def choice(self, place: Place, *, is_json: bool) -> _Choice | None:
        """The alternatives at a leaf, if they are finitely many, and more than one."""
        state = self._track.start.walk(self.text[: place.start])
        if state is None or state.lost:
            return None
        found = alternatives.values(state) if is_json else alternatives.texts(state)
        if found is None or len(found) < 2:
            return None
        differ = place.start + _common(found)
        at = min(bisect_right(self._ends, differ), len(self._ends) - 1)
        begin = self._starts[at]
        before = self.text[begin : place.start]
        skipped = max(0, begin - place.start)
        try:
            spelt = [
                (before + self._ended(text, found, place)[skipped:]).decode() for text in found
            ]
        except UnicodeDecodeError:  # a token before it ends inside a character
            return None
        encode = self._tokenizer.encode
        ids = [encode(text, opens=False, special=False, bos=False).tolist() for text in spelt]
        if place.end == len(self.text):
            ids = [own + self._end_ids(text, found) for own, text in zip(ids, found)]
        if not all(ids):
            return None
        values = [json.loads(text) if is_json else text.decode() for text in found]
        return _Choice(place.pointer, self._first + at, values, ids)

    def _ended(self, text: bytes, others: Sequence[bytes], place: Place) -> bytes:
        """With what stands behind it, where another alternative goes on as this one does not."""
        return text + self.text[place.end : place.end + 1] if _goes_on(text, others) else text

    def _end_ids(self, text: bytes, others: Sequence[bytes]) -> list[int]:
        """The same at the end of the output, where a stop token does it."""
        if not _goes_on(text, others):
            return []
        last = self._ids[-1]
        ends = sorted(self._tokenizer.eos_ids)
        return [last] if not self._tokenizer.bytes_of(last) else ends[:1]


async def _with_ending(calls: Calls, request: Request, said: Said, name: str) -> Said:
    """With the log-probabilities of the ids that were not sampled."""
    scoring = _scoring(request, request.prompt, said.ids, "whole")
    output = Output()
    async with contextlib.aclosing(calls.start([scoring], name)) as chunks:
        async for _, chunk in chunks:
            output.add(chunk)
    completed(finished(output))
    scores = zip(said.logprobs, output.prompt_scores.chosen, strict=True)
    return Said(said.ids, tuple(sampled or scored for sampled, scored in scores))


def _scoring(request: Request, head: bytes, ids: Sequence[int], mark: str) -> Request:
    """Scores `ids` behind `head`."""
    return replace(
        request,
        prompt=head + _packed(ids),
        params=SCORE_ONLY,
        rid=f"{request.rid}~{mark}",
        output_logprobs=None,
        prompt_logprobs=0,
        prompt_logprobs_start=len(head) // 4,
        logprob_ids=(),
        sampled_logprobs=False,
        belongs=True,
        constraint=None,
        reasoning=None,
        explain_cache=False,
    )


async def _score(
    calls: Calls, request: Request, said: Said, choices: Sequence[_Choice], name: str
) -> None:
    """Fill in the scores: the joint log-probability of each alternative's tokens."""
    asked: list[Request] = []
    for choice in choices:
        head = request.prompt + _packed(said.ids[: choice.shared])
        for ids in choice.ids:
            asked.append(_scoring(request, head, ids, f"field{len(asked)}"))
    if not asked:
        return
    outputs = [Output() for _ in asked]
    async with contextlib.aclosing(calls.start(asked, name)) as chunks:
        async for position, chunk in chunks:
            outputs[position].add(chunk)
    scores = iter(outputs)
    for choice in choices:
        for _ in choice.ids:
            output = next(scores)
            completed(finished(output))
            choice.scores.append(math.fsum(output.prompt_scores.chosen))


def _first_of_answer(reasoning: Reasoning | None, ids: Sequence[int], tokenizer: Tokenizer) -> int:
    """How many of the ids stand before the answer."""
    if reasoning is None:
        return 0
    follower = Follower(reasoning.begin, reasoning.end, reasoning.start)
    for token in ids:
        follower.feed(tokenizer.bytes_of(token, skip_special=False))
    if follower.phase != "behind" or follower.answer_at is None:
        return 0 if follower.phase in ("none", "before") else len(ids)
    begin = follower.answer_at + len(reasoning.gap)
    size = 0
    for count, token in enumerate(ids):
        if size >= begin:
            return count
        size += len(tokenizer.bytes_of(token, skip_special=False))
    return len(ids)


def _common(texts: Sequence[bytes]) -> int:
    """The length of what all of these sorted texts begin with."""
    first, last = texts[0], texts[-1]
    differ = (i for i, (one, other) in enumerate(zip(first, last)) if one != other)
    return next(differ, min(len(first), len(last)))


def _goes_on(text: bytes, others: Sequence[bytes]) -> bool:
    return any(other != text and other.startswith(text) for other in others)


def _packed(ids: Sequence[int]) -> bytes:
    return np.asarray(ids, "<i4").tobytes()
