"""The shape of a native answer.

Owns: the dictionaries that /generate and rs.Engine give back. Must not know: how the text came
about, HTTP.

An entry of log-probabilities is [logprob or null, id, text or null]; null stands where none
exists, as for the first token of a prompt.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Sequence
from typing import Any

from radixserve.chunks import Chunk, Finish
from radixserve.native.collect import Output, finished
from radixserve.native.request import Call
from radixserve.text.parts import EncodedPrompt
from radixserve.text.tokenizer import Tokenizer
from radixserve.wire.messages import FinishReason

Entry = list[Any]


class Answer:
    """One output of one prompt, growing chunk by chunk. index: its place in the whole answer.

    sister: the first output of the same prompt, whose prompt scores hold for all.
    """

    def __init__(
        self,
        call: Call,
        position: int,
        index: int,
        tokenizer: Tokenizer,
        sister: Answer | None = None,
    ) -> None:
        self.index = index
        self._call = call
        self._rid = call.requests[position].rid
        self._prompt = call.prompts[position]
        self._tokenizer = tokenizer
        self._output = Output()
        if sister is not None:
            self._output.prompt_scores = sister._output.prompt_scores
        self._entries: list[Entry] = []
        self._top_entries: list[list[Entry]] = []
        self._started = time.perf_counter()
        self._latency = 0.0

    def add(self, chunk: Chunk) -> None:
        self._output.add(chunk)
        if chunk.logprobs is not None:
            self._entries += self._spelt(chunk.ids, chunk.logprobs.chosen)
            self._top_entries += self._top(chunk.logprobs.top_ids, chunk.logprobs.top)
        self._latency = time.perf_counter() - self._started

    def whole(self) -> dict[str, Any]:
        """The finished answer. Raises InternalError if the stream ended without a finish."""
        finished(self._output)
        return self.so_far()

    def so_far(self) -> dict[str, Any]:
        """The answer up to here; finish_reason is null, and usage is absent, before the last."""
        output, meta = self._output, self._meta()
        meta |= self._logprob_fields()
        if self._prompt.encoded is not None:
            meta["prompt"] = prompt_fields(self._prompt.encoded)
            if output.finish is not None:
                kept = kept_ids(output, output.finish, self._tokenizer)
                meta["kept_ids"], meta["kept_tail"] = kept
        return {"text": output.text, "output_ids": list(output.ids), "meta_info": meta}

    def _meta(self) -> dict[str, Any]:
        finish = self._output.finish
        meta: dict[str, Any] = {"id": self._rid, "finish_reason": None}
        meta["prompt_tokens"] = len(self._prompt.ids) // 4
        meta["completion_tokens"] = len(self._output.ids)
        if finish is not None:
            meta["finish_reason"] = finish_fields(finish)
            meta["prompt_tokens"] = finish.usage.prompt_tokens
            meta["completion_tokens"] = finish.usage.completion_tokens
            meta["cached_tokens"] = finish.usage.cached_tokens
            meta["e2e_latency"] = self._latency
        return meta

    def _logprob_fields(self) -> dict[str, Any]:
        wanted = self._call.wanted
        if not wanted.logprobs:
            return {}
        start = self._call.body.logprob_start_len
        prompt_entries, prompt_top = self._prompt_entries(start) if start >= 0 else ([], [])
        fields: dict[str, Any] = {
            "output_token_logprobs": list(self._entries),
            "output_token_logprobs_length": len(self._entries),
            "input_token_logprobs": prompt_entries,
        }
        if wanted.top:
            fields["output_top_logprobs"] = list(self._top_entries)
            fields["input_top_logprobs"] = prompt_top
        return fields

    def _prompt_entries(self, start: int) -> tuple[list[Entry], list[list[Entry] | None]]:
        ids = memoryview(self._prompt.ids).cast("i").tolist()[start:]
        scores = self._output.prompt_scores
        if not scores.chosen:
            return self._spelt(ids, [None] * len(ids)), [None] * len(ids)
        before, after = [None] * (scores.start - start), [None] * (len(ids) + start - scores.end)
        top = self._top(scores.top_ids, scores.top)
        return self._spelt(ids, [*before, *scores.chosen, *after]), [*before, *top, *after]

    def _spelt(self, ids: Sequence[int], values: Sequence[float | None]) -> list[Entry]:
        spell = self._tokenizer.token_text if self._call.wanted.text else lambda _: None
        return [[value, token, spell(token)] for value, token in zip(values, ids, strict=True)]

    def _top(self, top_ids: list[list[int]], top: list[list[float]]) -> list[list[Entry]]:
        return [self._spelt(ids, values) for ids, values in zip(top_ids, top)]


def finish_fields(finish: Finish) -> dict[str, Any]:
    match finish.reason:
        case FinishReason.STOP:
            return {"type": "stop", "matched": finish.matched}
        case FinishReason.LENGTH:
            return {"type": "length", "length": finish.usage.completion_tokens}
        case FinishReason.ABORT:
            return {"type": "abort", "message": "the request was aborted"}
        case FinishReason.ERROR:
            return {"type": "abort", "message": "the engine failed while it served this request"}


def prompt_fields(encoded: EncodedPrompt) -> dict[str, Any]:
    """What parts became, to be sent back as the first part of the next prompt."""
    return {
        "ids": encoded.ids.tolist(),
        "roles": list(encoded.roles),
        "open": encoded.open_role,
    }


def kept_ids(output: Output, finish: Finish, tokenizer: Tokenizer) -> tuple[int, str]:
    """(n, tail): the first n output ids and then the text `tail` are what the output keeps.

    End tokens are not kept. Where a stop string begins inside a token, what that token spells
    before it is the tail; n backs off to the border of a character, so that the tail is text.
    """
    kept = finish.kept_ids
    if isinstance(finish.matched, int) and output.ids and output.ids[-1] == finish.matched:
        kept = min(kept, len(output.ids) - 1)
    if not isinstance(finish.matched, str):
        return kept, ""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, whole, border = "", "", 0
    for count, token in enumerate(output.ids[:kept], start=1):
        text += decoder.decode(tokenizer.token_bytes[token])
        if not decoder.getstate()[0]:
            whole, border = text, count
    if not output.text.startswith(whole):
        return 0, output.text
    return border, output.text[len(whole) :]
