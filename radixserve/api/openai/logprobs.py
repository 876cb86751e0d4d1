"""Log-probabilities in the two shapes of the OpenAI dialect.

Owns: both shapes, and how a token is spelled in them. Must not know: requests, streams.

A chosen token is spelled as the text that it added to the output, so the spellings of all tokens
joined are the text (up to the cut of a stop string): a token that ends a character carries the
whole of it, the ones before carry nothing, and so do control tokens. `bytes` has what each token
is exactly. Candidates that were not chosen are spelled alone.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from radixserve.text.tokenizer import Tokenizer

LOWEST = -9999.0  # OpenAI's word for "not a chance"; JSON has no infinity


class Spelling:
    """What each token of one text adds to it. show_control: spell out control tokens too."""

    def __init__(self, tokenizer: Tokenizer, *, show_control: bool = False) -> None:
        self._tokenizer = tokenizer
        self._show_control = show_control
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._decoder.decode(
            self._tokenizer.bytes_of(token, skip_special=not self._show_control)
        )

    def all(self, ids: Iterable[int]) -> list[str]:
        return [self.add(token) for token in ids]


class ChatLogprobs:
    """Entries of a chat choice, as its tokens arrive."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._spelling = Spelling(tokenizer)

    def entries(
        self,
        ids: Sequence[int],
        chosen: Sequence[float],
        top_ids: Sequence[Sequence[int]],
        top: Sequence[Sequence[float]],
    ) -> list[dict[str, Any]]:
        """One entry for each of `ids`: [n]; chosen: [n]; top_ids, top: [n][k]."""
        entries = []
        for token, value, others, values in zip(ids, chosen, top_ids, top, strict=True):
            entry = self._entry(self._spelling.add(token), token, value)
            entry["top_logprobs"] = [
                self._entry(self._tokenizer.token_text(other), other, each)
                for other, each in zip(others, values)
            ]
            entries.append(entry)
        return entries

    def _entry(self, text: str, token: int, value: float) -> dict[str, Any]:
        exact = list(self._tokenizer.bytes_of(token))
        return {"token": text, "logprob": max(value, LOWEST), "bytes": exact}


class CompletionLogprobs:
    """Columns of a completions choice, as its tokens arrive. best: how many candidates are told.
    offset: characters of the choice that stand before.

    top_logprobs is keyed by text, so two candidates with one text would collide: the chosen token
    keeps its key, then the likelier one does. A part of a character is keyed by its bytes, like
    "bytes:\\xf0\\x9f".
    """

    def __init__(self, tokenizer: Tokenizer, best: int, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._best = best
        self._offset = offset

    def columns(
        self,
        spellings: Sequence[str],
        chosen: Sequence[float | None],
        top_ids: Sequence[Sequence[int]],
        top: Sequence[Sequence[float]],
    ) -> dict[str, list[Any]]:
        """All columns have one entry for each of `spellings`; null where no score exists."""
        offsets = []
        for text in spellings:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": list(spellings),
            "token_logprobs": [None if v is None else max(v, LOWEST) for v in chosen],
            "top_logprobs": [
                None if value is None else self._candidates(text, value, others, values)
                for text, value, others, values in zip(spellings, chosen, top_ids, top, strict=True)
            ],
            "text_offset": offsets,
        }

    def _candidates(
        self, text: str, value: float, others: Sequence[int], values: Sequence[float]
    ) -> dict[str, float]:
        found: dict[str, float] = {}
        for other, each in zip(others[: self._best], values):
            found.setdefault(self._key(other), max(each, LOWEST))
        found[text] = max(value, LOWEST)
        return found

    def _key(self, token: int) -> str:
        exact = self._tokenizer.bytes_of(token, skip_special=False)
        try:
            return exact.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in exact)
