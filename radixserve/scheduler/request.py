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
import time
from typing import TYPE_CHECKING

import numpy as np

from radixserve.cache.bookmark import Bookmark
from radixserve.guide import Guide
from radixserve.plan import Float64, Int32, SlotId
from radixserve.scheduler.finish import Ending, FinishCheck
from radixserve.wire.cache import CacheReport
from radixserve.wire.messages import FinishReason, Generate, TokenOut

if TYPE_CHECKING:
    from radixserve.cache.lease import Lease
    from radixserve.scheduler.standing import Standing


class Phase(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Request:
    """A Generate message and what has become of it."""

    __slots__ = (
        "after_prefill",
        "arrival",
        "arrived_at",
        "bookmark",
        "cache_report",
        "cached_tokens",
        "check",
        "computed",
        "computed_tokens",
        "cut",
        "failures",
        "forced",
        "guide",
        "held_in",
        "in_flight",
        "key",
        "lease",
        "level",
        "max_new_tokens",
        "message",
        "opening_len",
        "output",
        "overtaken",
        "phase",
        "pooled",
        "prefill_len",
        "prompt",
        "prompt_len",
        "queue_seconds",
        "rid",
        "sampling",
        "scored",
        "slot",
        "standing",
        "told",
        "untold",
        "untold_since",
    )

    def __init__(
        self,
        message: Generate,
        arrival: int,
        max_new_tokens: int,
        check: FinishCheck,
        guide: Guide | None = None,
    ) -> None:
        self.message = message
        self.rid = message.rid
        self.guide = guide
        self.arrival = arrival
        self.arrived_at = time.monotonic()
        self.queue_seconds = 0.0
        self.max_new_tokens = max_new_tokens
        self.check = check
        self.prompt: Int32 = np.frombuffer(message.prompt, dtype="<i4")
        self.prompt_len = len(self.prompt)
        self.output: list[int] = []
        self.after_prefill = Ending(FinishReason.LENGTH)  # where nothing is to be sampled
        self.forced = 0  # output tokens that were not sampled
        self.opening_len = 0  # of those, the ones before the first sampled token
        self.told = 0  # output tokens that the executor knows of
        self.untold: list[TokenOut] = []  # what the front is not told yet
        self.untold_since = 0.0
        self.key = message.prompt  # of every known token when the request was queued
        self.prefill_len = self.prompt_len  # tokens to compute before the first decode row
        self.phase = Phase.WAITING
        self.lease: Lease | None = None
        self.slot: SlotId | None = None
        self.computed = 0
        self.in_flight = 0  # launched steps that name this request
        self.sampling = 0  # of those, the ones that sample
        self.scored = message.prompt_logprobs_start  # next prompt token to score
        self.cache_report: CacheReport | None = None  # of the first admission
        self.cached_tokens = 0
        self.computed_tokens = 0
        self.overtaken = 0
        self.held_in = -1  # the step in which others computed a beginning for it
        self.cut = 0  # where the beginning ends that it computes for others
        self.standing: Standing | None = None  # of its program, where programs count
        self.level = 0
        self.pooled: Float64 | None = None  # sum of the hidden states told so far
        self.failures = 0
        self.bookmark = Bookmark(message.namespace, self.key, self.match_limit)

    def launch(self, end: int, *, samples: bool) -> None:
        """A step will compute its tokens up to `end`, and draw the next one if it samples."""
        self.computed = end
        self.in_flight += 1
        self.sampling += samples

    def queue(self) -> None:
        """It waits, with all that is known of it."""
        self.key = self.tokens().tobytes()
        self.bookmark = Bookmark(self.message.namespace, self.key, self.match_limit)

    def note_admission(self) -> None:
        """Keep how long it waited; the first time counts, not those after a retraction."""
        if not self.queue_seconds:
            self.queue_seconds = time.monotonic() - self.arrived_at

    def add_hidden(self, values: Float64) -> None:
        self.pooled = values if self.pooled is None else self.pooled + values

    def embedding(self) -> bytes:
        """The pooled hidden states as float32; nothing where none were told."""
        if self.pooled is None:
            return b""
        count = self.prompt_len if self.message.pooling == "mean" else 1
        return (self.pooled / count).astype("<f4").tobytes()

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
        """Whether one more token may be sampled after those in flight.

        Under a grammar none may be in flight: what follows it may be forced.
        """
        if self.guide is not None and self.sampling:
            return False
        return len(self.output) + self.sampling < self.max_new_tokens

    @property
    def room(self) -> int:
        """Tokens that the output may still take."""
        return self.max_new_tokens - len(self.output)

    @property
    def one_by_one(self) -> bool:
        """Every output token must be sampled, since log-probabilities are wanted."""
        message = self.message
        is_wanted = message.output_logprobs is not None and not message.sampled_logprobs
        return is_wanted or message.prompt_logprobs is not None

    @property
    def is_bound(self) -> bool:
        """The output has a constraint."""
        return self.message.constraint is not None

    @property
    def match_limit(self) -> int | None:
        """Most tokens that may come from the cache: the logits before a scored token are needed,
        and for a mean every hidden state."""
        if self.message.pooling == "mean":
            return 0
        return self.scored - 1 if self.wants_scores else None

    def output_ids(self, start: int, end: int) -> Int32:
        """Tokens [start, end), none of them of the prompt: [end - start] int32."""
        first = self.prompt_len
        return np.asarray(self.output[start - first : end - first], np.int32)

    def tokens(self) -> Int32:
        """Every known token."""
        if not self.output:
            return self.prompt
        return np.concatenate([self.prompt, np.asarray(self.output, np.int32)])
