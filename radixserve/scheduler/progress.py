"""What becomes of a request when a token has been sampled for it.

Owns: the order in which stop conditions, grammar and length are asked, and which of them wins.
Must not know: the queue, the cache, steps.

Under a grammar the grammar wins: a stop string ends the output only where the text before it is
whole, a pattern behind the first token where it has matched and the text is whole, and an output
that the grammar has completed ends there, whatever min_new_tokens or ignore_eos say.
"""

from __future__ import annotations

from dataclasses import dataclass

from radixserve.errors import InternalError, RequestError
from radixserve.guide import Close, Guide, Taken
from radixserve.scheduler.finish import Ending
from radixserve.scheduler.request import Request
from radixserve.wire.messages import FinishReason


@dataclass(frozen=True, slots=True)
class Progress:
    """ids: to be appended to the output; the last `forced` of them were not sampled. again: nothing
    is appended, the position is to be sampled once more."""

    ids: list[int]
    forced: int = 0
    ending: Ending | None = None
    again: bool = False
    error: RequestError | None = None


def ending_at(request: Request, token: int) -> Ending | None:
    """How the next token of a request without a grammar ends it."""
    ending = request.check.push(token)
    if ending is None and len(request.output) + 1 >= request.max_new_tokens:
        return Ending(FinishReason.LENGTH)
    return ending


def sampled(request: Request, token: int) -> Progress:
    """The next token of `request`."""
    if request.guide is None:
        return Progress([token], ending=ending_at(request, token))
    try:
        taken = request.guide.take(token, request.room - 1)
    except ValueError as error:
        return Progress([], error=InternalError(f"mask and grammar disagree: {error}"))
    return _guided(request, request.guide, taken)


def opened(request: Request, guide: Guide) -> Progress:
    """What the grammar puts at the beginning. Raises InvalidRequest when no output fits."""
    return _guided(request, guide, guide.begin(request.room, one_by_one=request.one_by_one))


def _guided(request: Request, guide: Guide, taken: Taken) -> Progress:
    if taken.error is not None:
        return Progress([], error=taken.error)
    if taken.close is Close.SHORT:
        return Progress(list(taken.ids), taken.forced, Ending(FinishReason.LENGTH))
    chosen = len(taken.ids) - taken.forced
    ids: list[int] = []
    ending: Ending | None = None
    for i, token in enumerate(taken.ids):
        ids.append(token)
        is_heard = i >= taken.thoughts
        ending = _stop(request, guide, token, is_text=not taken.stopped, is_heard=is_heard)
        if ending is not None:
            break
    if ending is None and taken.close is Close.WHOLE:
        ending = Ending(FinishReason.STOP)
    if ending is None and len(ids) >= request.room:
        ending = Ending(FinishReason.LENGTH)
    return Progress(ids, max(0, len(ids) - chosen), ending, taken.again)


def _stop(
    request: Request, guide: Guide, token: int, *, is_text: bool, is_heard: bool
) -> Ending | None:
    ending = request.check.push(token, is_text=is_text, is_heard=is_heard)
    if ending is None or isinstance(ending.matched, int):
        return ending
    size = request.check.size if ending.kept_bytes is None else ending.kept_bytes
    return ending if guide.whole_at(size) else None
