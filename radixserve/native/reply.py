"""The shape of a native answer.

Owns: the dictionaries that /generate and rs.Engine give back. Must not know: how the text came
about, HTTP.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Mapping, Sequence
from typing import Any

from radixserve.chunks import Chunk, Finish
from radixserve.errors import Stopping
from radixserve.native.collect import Output, finished
from radixserve.native.entries import Entry, PromptEntries, Spelt
from radixserve.native.explained import cache_fields
from radixserve.native.hearing import Spoken, hearing_of
from radixserve.native.request import Call
from radixserve.text.parts import EncodedPrompt
from radixserve.text.tokenizer import Tokenizer
from radixserve.text.tool_calls import Syntax
from radixserve.wire.messages import FinishReason


class Answer:
    """One output of one prompt, growing chunk by chunk. index: its place in the whole answer.

    sister: the first output of the same prompt, whose prompt scores hold for all; None: it is this.
    """

    def __init__(
        self,
        call: Call,
        position: int,
        index: int,
        tokenizer: Tokenizer,
        syntax: Syntax,
        sister: Answer | None = None,
    ) -> None:
        self.index = index
        self._call = call
        self._position = position
        self._rid = call.requests[position].rid
        self._prompt = call.prompts[position]
        self._tokenizer = tokenizer
        self._output = Output()
        self._spelt = Spelt(tokenizer, call.wanted.text)
        self._first = sister or self
        self._prompt_entries: PromptEntries = (
            self._entries_of_prompt() if sister is None else sister._prompt_entries
        )
        self._output.prompt_scores = self._prompt_entries.scores
        self._told_scores = self._told_prompt = False
        self._named = len(call.requests[position].logprob_ids)
        self._entries: list[Entry] = []
        self._top_entries: list[list[Entry]] = []  # the ids asked for by name behind the best
        self._started = time.perf_counter()
        self._latency = 0.0
        self._spoken = self._told_apart(syntax)

    def _told_apart(self, syntax: Syntax) -> Spoken | None:
        """None where the text is told as it is."""
        call, reasoning = self._call, self._call.requests[self._position].reasoning
        separates = call.body.separate_reasoning
        if not call.names and (reasoning is None or not separates):
            return None
        hearing = hearing_of(
            syntax,
            call.names,
            reasoning,
            is_marked=call.marked[self._position],
            is_bound=call.wishes[self._position] is not None,
            separates=separates,
        )
        return Spoken(hearing, syntax.new_id)

    def add(self, chunk: Chunk) -> None:
        self._output.add(chunk)
        if self._spoken is not None:
            self._spoken.add(chunk.text, chunk.finish is not None)
        if chunk.prompt_scores is not None:
            self._prompt_entries.grow()
        if chunk.logprobs is not None:
            self._entries += self._spelt.row(chunk.ids, chunk.logprobs.chosen)
            self._top_entries += self._spelt.rows(chunk.logprobs.top_ids, chunk.logprobs.top)
        self._latency = time.perf_counter() - self._started

    @property
    def is_held(self) -> bool:
        """It has finished, and scores of its prompt are still to come with the first output."""
        return (
            self._output.finish is not None
            and self._first._output.finish is None
            and not self._prompt_entries.is_complete
        )

    def whole(self) -> dict[str, Any]:
        """The finished answer. Raises InternalError if the stream ended without a finish."""
        finished(self._output)
        return self.so_far()

    def so_far(self) -> dict[str, Any]:
        """The answer up to here, for a stream; finish_reason is null, and usage is absent, before
        the last.

        What the output has is all there each time. What is told of the prompt is there twice,
        since it may be long: the first time that it is complete, and with the finish.
        """
        output, meta = self._output, self._meta()
        is_last = output.finish is not None
        if self._call.wanted.logprobs:
            meta |= self._output_fields()
            if is_last or (self._prompt_entries.is_complete and not self._told_scores):
                self._told_scores = True
                meta |= self._prompt_fields()
        encoded = self._prompt.encoded
        if encoded is not None and (is_last or not self._told_prompt):
            self._told_prompt = True
            meta["prompt"] = prompt_fields(encoded)
        if encoded is not None and output.finish is not None:
            reasoning = self._call.requests[self._position].reasoning
            spelt = {} if reasoning is None else reasoning.spelt
            kept = kept_ids(output, output.finish, self._tokenizer, spelt)
            meta["kept_ids"], meta["kept_tail"] = kept
        said = self._said()
        return {**said, "output_ids": list(output.ids), "meta_info": meta}

    def _said(self) -> dict[str, Any]:
        spoken, body = self._spoken, self._call.body
        said: dict[str, Any] = {"text": self._output.text if spoken is None else spoken.text}
        if body.separate_reasoning:
            said["reasoning_content"] = "" if spoken is None else spoken.thoughts
        if self._call.names:
            calls = [] if spoken is None else spoken.calls
            said["tool_calls"] = [{**each, "function": {**each["function"]}} for each in calls]
        return said

    def _entries_of_prompt(self) -> PromptEntries:
        start = self._call.body.logprob_start_len
        is_wanted = self._call.wanted.logprobs and start >= 0
        ids = memoryview(self._prompt.ids).cast("i").tolist() if is_wanted else []
        is_scored = self._call.requests[self._position].prompt_logprobs is not None
        return PromptEntries(ids, max(0, start), self._output.prompt_scores, is_scored, self._spelt)

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
            meta["forced_tokens"] = finish.usage.forced_tokens
            if self._call.requests[self._position].reasoning is not None:
                meta["reasoning_tokens"] = finish.usage.reasoning_tokens
            meta |= constraint_fields(finish)
            meta["e2e_latency"] = self._latency
            meta["queue_time"] = finish.queue_seconds
            if finish.cache is not None:
                meta["cache"] = cache_fields(finish.cache, self._prompt.ids, self._tokenizer)
        return meta

    def _output_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "output_token_logprobs": list(self._entries),
            "output_token_logprobs_length": len(self._entries),
        }
        return fields | self._beside("output", self._top_entries)

    def _beside(self, of: str, rows: Sequence[list[Entry] | None]) -> dict[str, Any]:
        """What stands beside the tokens at each position: the best, and the ids asked for."""
        fields: dict[str, Any] = {}
        if self._call.wanted.top:
            fields[f"{of}_top_logprobs"] = [row and row[: len(row) - self._named] for row in rows]
        if self._named:
            fields[f"{of}_token_ids_logprobs"] = [row and row[-self._named :] for row in rows]
        return fields

    def _prompt_fields(self) -> dict[str, Any]:
        entries = self._prompt_entries
        if self._output.finish is not None:
            entries.complete()  # an aborted prompt may lack some
        return {
            "input_token_logprobs": list(entries.chosen),
            **self._beside("input", entries.top),
        }


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
        case FinishReason.TIMEOUT:
            return {"type": "abort", "message": "the request passed its deadline"}
        case FinishReason.SHUTDOWN:
            error = Stopping()
            told = {"status_code": error.status, "err_type": error.code}
            return {"type": "abort", "message": error.message, **told}


def constraint_fields(finish: Finish) -> dict[str, Any]:
    """How an output stands to its constraint, in every dialect; nothing where there is nothing to
    say.

    truncated: true where max_new_tokens cut it short. constraint_violations: where it was
    validated, [] for a valid one. field_logprobs: by JSON pointer, where it was asked for.
    """
    fields: dict[str, Any] = {"truncated": True} if finish.truncated else {}
    if finish.violations is not None:
        fields["constraint_violations"] = list(finish.violations)
    if finish.fields is not None:
        fields["field_logprobs"] = finish.fields
    return fields


def prompt_fields(encoded: EncodedPrompt) -> dict[str, Any]:
    """What parts became, to be sent back as the first part of the next prompt."""
    return encoded.told()


def kept_ids(
    output: Output, finish: Finish, tokenizer: Tokenizer, spelt: Mapping[int, bytes]
) -> tuple[int, str]:
    """(n, tail): the first n output ids and then the text `tail` are what the output keeps. spelt:
    control tokens that the text spells.

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
        text += decoder.decode(spelt.get(token) or tokenizer.token_bytes[token])
        if not decoder.getstate()[0]:
            whole, border = text, count
    if not output.text.startswith(whole):
        return 0, output.text
    return border, output.text[len(whole) :]
