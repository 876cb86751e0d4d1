"""The tags of reasoning as tokens of one model, and how many tokens an output reasons for.

Owns: the wire form of a model's tags, counting. Must not know: requests, any dialect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from radixserve.text.reasoning import Place, Tags, Thinking, place_of
from radixserve.text.tokenizer import IdArray, Tokenizer
from radixserve.wire.reasoning import Follower, Reasoning

_TAIL = 64  # last ids of a prompt in which a tag is looked for


class ReasoningTokens:
    """The tags of `thinking` in the tokens of `tokenizer`."""

    def __init__(self, thinking: Thinking, tokenizer: Tokenizer) -> None:
        self.thinking = thinking
        self._tokenizer = tokenizer
        self._base = _on_wire(thinking.tags, tokenizer)

    def of(
        self, prompt: bytes, *, place: Place | None = None, budget: int | None = None
    ) -> Reasoning | None:
        """How the output of a prompt reasons; None where the prompt ends with reasoning over.

        prompt: int32, little-endian. place: where it leaves the output; None looks at its end.
        """
        if place is None:
            tail = np.frombuffer(prompt, "<i4")[-_TAIL:].tolist()
            text = self._tokenizer.decode(tail, skip_special=False)
            place = place_of(text, self.thinking.tags)
        if place == "closed":
            return None
        if place == "either" and not self.thinking.is_open:
            return msgspec.structs.replace(self._base, budget=budget)
        return msgspec.structs.replace(self._base, budget=budget, start="open")

    def opened(self, ids: IdArray) -> IdArray:
        """A prompt with the begin tag behind it, as templates write it."""
        return np.concatenate([ids, _ids(self._tokenizer, f"{self.thinking.tags.begin}\n")])


class ReasoningCount:
    """Fed the ids of one output; tokens: how many of them reason.

    Those are the tokens wholly behind the begin tag, to the last that ends where the end tag begins
    or before. spell: the bytes of an id, control tokens spelled.
    """

    def __init__(self, reasoning: Reasoning, spell: Callable[[int], bytes]) -> None:
        self._follower = Follower(reasoning.begin, reasoning.end, reasoning.start)
        self._longest = len(reasoning.end)
        self._spell = spell
        self._sure = 0
        self._recent: deque[int] = deque()  # where the tokens end that may be of the end tag

    @property
    def tokens(self) -> int:
        end = self._follower.end_at
        if end is None:
            return self._sure + len(self._recent)
        return self._sure + sum(at <= end for at in self._recent)

    def add(self, ids: Iterable[int]) -> None:
        follower = self._follower
        for token in ids:
            if follower.phase in ("behind", "none"):
                return
            was_inside = follower.phase == "inside"
            follower.feed(self._spell(token))
            if not was_inside:
                continue
            self._recent.append(follower.size)
            while self._recent[0] <= follower.size - self._longest and follower.end_at is None:
                self._recent.popleft()
                self._sure += 1


def _on_wire(tags: Tags, tokenizer: Tokenizer) -> Reasoning:
    begin_ids, end_ids = (_ids(tokenizer, tag).tolist() for tag in (tags.begin, tags.end))
    return Reasoning(
        begin=tags.begin.encode(),
        end=tags.end.encode(),
        begin_ids=tuple(begin_ids),
        end_ids=tuple(end_ids),
        start="either",
        gap=tags.gap.encode(),
        gap_ids=tuple(
            tuple(_ids(tokenizer, tags.gap[n:]).tolist()) for n in range(len(tags.gap) + 1)
        ),
        spelt={
            token: tokenizer.bytes_of(token, skip_special=False)
            for token in (*begin_ids, *end_ids)
            if token in tokenizer.special_ids
        },
    )


def _ids(tokenizer: Tokenizer, text: str) -> IdArray:
    return tokenizer.encode(text, opens=False, special=True, bos=False)
