"""What a request may ask for, and how many pages running requests still need.

Owns: the arithmetic of admission. Must not know: the queue, the tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from radixserve.config.schema import ScheduleConfig
from radixserve.errors import (
    ConfigError,
    ContextTooLong,
    InvalidRequest,
    QueueFull,
    RequestError,
)
from radixserve.ints import ceil_div
from radixserve.scheduler.outputs import finished
from radixserve.scheduler.request import Request
from radixserve.wire.messages import Finished, FinishReason, Generate


@dataclass(frozen=True, slots=True)
class Bounds:
    """max_waiting: requests in the queue. capacity: tokens of the KV pool. context_len and
    vocab_size: of the model."""

    max_waiting: int
    context_len: int
    capacity: int
    vocab_size: int

    def allowed(self, message: Generate, waiting: int) -> int:
        """max_new_tokens of the request, clamped to what context and KV pool can hold.

        waiting: requests before it. Raises QueueFull, ContextTooLong when not even one output token
        fits, InvalidRequest for a bad prompt.
        """
        if waiting >= self.max_waiting:
            raise QueueFull(f"{waiting} requests are waiting; try again later")
        return allowed_new_tokens(message, self.context_len, self.capacity, self.vocab_size)

    def refusal(self, message: Generate, waiting: int) -> Finished | None:
        """The last word about a request that is not allowed."""
        try:
            self.allowed(message, waiting)
        except RequestError as error:
            return finished(message.rid, FinishReason.ERROR, error=error)
        return None


def check_budget(config: ScheduleConfig, page_size: int) -> None:
    """Raises ConfigError where prompts could not advance beside decoding requests."""
    if config.token_budget < config.max_running + page_size:
        raise ConfigError(
            f"token_budget ({config.token_budget}) must be at least max_running "
            f"({config.max_running}) + page_size ({page_size}), so that prompts advance beside "
            "decoding requests"
        )


def allowed_new_tokens(message: Generate, context_len: int, capacity: int, vocab_size: int) -> int:
    """max_new_tokens of the request, clamped to what context and KV pool can hold.

    capacity: tokens of the pool.
    Raises ContextTooLong when not even one output token fits, InvalidRequest for a bad prompt.
    """
    size = len(message.prompt)
    if size == 0 or size % 4:
        raise InvalidRequest("the prompt has no tokens", param="prompt")
    prompt_len = size // 4
    room = min(context_len, capacity)
    if prompt_len >= room:
        raise ContextTooLong(
            f"the prompt has {prompt_len} tokens; with at least one output token it must fit "
            f"the context of {context_len} and the KV pool of {capacity}",
            param="prompt",
        )
    for token in message.params.stop_token_ids:
        _in_vocabulary("stop_token_ids", token, vocab_size)
    for token in message.params.logit_bias:
        _in_vocabulary("logit_bias", token, vocab_size)
    for token in message.logprob_ids:
        _in_vocabulary("logprob_ids", token, vocab_size)
    return min(message.params.max_new_tokens, room - prompt_len)


def _in_vocabulary(name: str, token: int, vocab_size: int) -> None:
    if token >= vocab_size:
        raise InvalidRequest(
            f"{name}: id {token} is not in the vocabulary of {vocab_size}", param=name
        )


def reserved_pages(running: Iterable[Request], share: float, page_size: int) -> int:
    """Pages to keep available for the output still to come: a share of each remaining length."""
    pages = 0
    for request in running:
        remaining = request.max_new_tokens - len(request.output)
        pages += ceil_div(int(remaining * share), page_size)
    return pages
