"""One request's state inside the scheduler.

Owns: the numbers of a request and their named differences. Must not know: the queue it stands in,
the cache's inside, tensors.

    known_len      tokens whose ids are known: prompt + output
    seq_len        known_len + tokens being sampled by launched steps
    computed       tokens whose K and V are computed, launched steps included
    extend_len     seq_len - computed: what a row may compute; 1 while decoding
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import numpy as np

from radixserve.plan import Int32, SlotId
from radixserve.scheduler.finish import FinishCheck
from radixserve.wire.messages import Generate

if TYPE_CHECKING:
    from radixserve.cache.lease import Lease


class Phase(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Request:
    """A Generate message and what has become of it."""

    __slots__ = (
        "arrival",
        "cached_tokens",
        "check",
        "computed",
        "computed_tokens",
        "failures",
        "in_flight",
        "key",
        "lease",
        "max_new_tokens",
        "message",
        "output",
        "overtaken",
        "phase",
        "prefill_len",
        "prompt",
        "prompt_len",
        "sampling",
        "scored",
        "slot",
    )

    def __init__(
        self, message: Generate, arrival: int, max_new_tokens: int, check: FinishCheck
    ) -> None:
        self.message = message
        self.arrival = arrival
        self.max_new_tokens = max_new_tokens
        self.check = check
        self.prompt: Int32 = np.frombuffer(message.prompt, dtype="<i4")
        self.prompt_len = len(self.prompt)
        self.output: list[int] = []
        self.key = message.prompt  # of every known token, made anew when the request is admitted
        self.prefill_len = self.prompt_len  # tokens to compute before the first decode row
        self.phase = Phase.WAITING
        self.lease: Lease | None = None
        self.slot: SlotId | None = None
        self.computed = 0
        self.in_flight = 0  # launched steps that name this request
        self.sampling = 0  # of those, the ones that sample
        self.scored = message.prompt_logprobs_start  # next prompt token to score
        self.cached_tokens = 0
        self.computed_tokens = 0
        self.overtaken = 0
        self.failures = 0

    @property
    def rid(self) -> str:
        return self.message.rid

    @property
    def known_len(self) -> int:
        return self.prompt_len + len(self.output)

    @property
    def seq_len(self) -> int:
        return self.known_len + self.sampling

    @property
    def prefilling(self) -> bool:
        return self.computed < self.prefill_len

    @property
    def wants_scores(self) -> bool:
        return self.message.prompt_logprobs is not None and self.scored < self.prompt_len

    @property
    def wants_decode(self) -> bool:
        """Whether one more token may be sampled after those in flight."""
        return len(self.output) + self.sampling < self.max_new_tokens

    @property
    def match_limit(self) -> int | None:
        """Most tokens that may come from the cache: the logits before a scored token are needed."""
        return self.scored - 1 if self.wants_scores else None

    def tokens(self) -> Int32:
        """Every known token."""
        if not self.output:
            return self.prompt
        return np.concatenate([self.prompt, np.asarray(self.output, np.int32)])
