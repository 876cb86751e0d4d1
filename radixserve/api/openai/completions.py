"""POST /v1/completions.

Owns: from prompts to requests, from chunks to text choices. Choice i of prompt p has the index
p * n + i. Must not know: HTTP, chat.
"""

from __future__ import annotations

import functools
from typing import Any

from radixserve.api.openai.common import Event, Head, Job, ending
from radixserve.api.openai.constraint import wish_of
from radixserve.api.openai.logprobs import CompletionLogprobs, Spelling
from radixserve.api.openai.sampling import sampling_params, stream_options
from radixserve.api.openai.schema import CompletionRequest
from radixserve.chunks import Chunk, Request
from radixserve.errors import InvalidRequest
from radixserve.native.calls import Door, new_rid
from radixserve.native.collect import PromptScores
from radixserve.native.prompts import text_or_ids
from radixserve.native.request import check_rid, namespace, program_ref
from radixserve.text.tokenizer import Tokenizer
from radixserve.wire.params import MAX_TOP_LOGPROBS

Columns = dict[str, list[Any]]


def completion_job(given: CompletionRequest, gateway: Door, default_max_tokens: int) -> Job:
    """Check and tokenise. Takes time in the length of the text: call in a thread.

    Raises InvalidRequest naming the field at fault.
    """
    options = stream_options(given)
    params = sampling_params(given, default_max_tokens)
    _check_counts(given)
    wish = wish_of(given)
    rid = given.rid or new_rid()
    check_rid(rid)
    prompts = text_or_ids(given.prompt, "prompt", gateway)
    requests = tuple(
        Request(
            prompt=prompt,
            params=params,
            rid=rid if len(prompts) == 1 else f"{rid}~{position}",
            output_logprobs=given.logprobs,
            prompt_logprobs=given.logprobs if given.echo and len(prompt) > 4 else None,
            prompt_logprobs_start=1,
            namespace=namespace(given.cache_salt),
            priority=given.priority,
            timeout_s=given.timeout_s,
            program=program_ref(given.program),
            explain_cache=given.explain_cache,
            shows_special=not given.skip_special_tokens,
            keeps_stop=given.no_stop_trim or given.include_stop_str_in_output,
        )
        for position, (prompt, _) in enumerate(prompts)
    )
    tokenizer = gateway.renderer.tokenizer
    echoes = [Echo(prompt, text, given, tokenizer) for prompt, text in prompts]
    reply = CompletionReply(
        [
            TextChoice(position * params.n + i, echo, given.logprobs, tokenizer)
            for position, echo in enumerate(echoes)
            for i in range(params.n)
        ],
        params.n,
    )
    head = Head(model=gateway.model_name, rid=rid, show_usage=options.include_usage)
    return Job(requests, head, reply, wish, tokenizer)


class CompletionReply:
    """All choices of one call: n for each prompt."""

    id_prefix = "cmpl"
    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(self, choices: list[TextChoice], n: int) -> None:
        self._choices = choices
        self._n = n

    def begin(self) -> list[Event]:
        return []

    def add(self, position: int, chunk: Chunk) -> list[Event]:
        start = position * self._n
        mine = self._choices[start : start + self._n]
        added = mine[chunk.index].add(chunk)
        # Those that came before the scores of their prompt, which come with the first.
        return [*added, *(event for choice in mine for event in choice.released())]

    def choices(self) -> list[Event]:
        return [choice.whole() for choice in self._choices]


class Echo:
    """The prompt in front of the outputs it is echoed to, and its scores, shared by them."""

    def __init__(
        self, prompt: bytes, text: str | None, given: CompletionRequest, tokenizer: Tokenizer
    ) -> None:
        self.text = ""
        self.spellings: list[str] = []
        self.scores = PromptScores()
        self.length = 0
        self.is_over = False
        self._logprobs: CompletionLogprobs | None = None
        self._last = 0
        if not given.echo:
            return
        ids = memoryview(prompt).cast("i").tolist()
        self.spellings = Spelling(tokenizer, show_control=True).all(ids)
        if text is not None and tokenizer.bos_id == ids[0]:
            # The front put it there, unless the client spelt it.
            self.spellings[0] = self.spellings[0] if text.startswith(self.spellings[0]) else ""
        self.text = "".join(self.spellings) if text is None else text
        self._last = len(ids) if given.logprobs is not None and len(ids) > 1 else 0
        self.length = sum(map(len, self.spellings))
        if given.logprobs is not None:
            self._logprobs = CompletionLogprobs(tokenizer, given.logprobs)

    @property
    def is_ready(self) -> bool:
        """Every score that the prompt will get is here. is_over: its first output has ended."""
        return self.is_over or self.scores.end >= self._last

    @functools.cached_property
    def columns(self) -> Columns:
        """To be read when it is ready; null where no score exists."""
        if self._logprobs is None:
            return _no_columns()
        scores = self.scores
        before = scores.start if scores.chosen else 0
        after = len(self.spellings) - before - len(scores.chosen)
        return self._logprobs.columns(
            self.spellings,
            [*[None] * before, *scores.chosen, *[None] * after],
            [*[[]] * before, *scores.top_ids, *[[]] * after],
            [*[[]] * before, *scores.top, *[[]] * after],
        )


class TextChoice:
    """One choice as it grows: first the echo, then the output."""

    def __init__(self, index: int, echo: Echo, best: int | None, tokenizer: Tokenizer) -> None:
        self._index = index
        self._echo = echo
        self._best = best
        self._logprobs = None if best is None else CompletionLogprobs(tokenizer, best, echo.length)
        self._spelling = Spelling(tokenizer)
        self._held: list[Chunk] = []
        self._is_open = False
        self._text = ""
        self._columns = _no_columns()
        self._ending: Event = {"finish_reason": None}

    def add(self, chunk: Chunk) -> list[Event]:
        if chunk.prompt_scores is not None:
            self._echo.scores.add(*chunk.prompt_scores)
        if chunk.index == 0 and chunk.finish is not None:
            self._echo.is_over = True
        self._held.append(chunk)
        return self.released()

    def released(self) -> list[Event]:
        """Events of the chunks that were held back, if they may go."""
        if not self._held or not self._echo.is_ready:
            return []
        news = [] if self._is_open else self._opening()
        self._is_open = True
        for held in self._held:
            news += self._output(held)
        self._held.clear()
        return news

    def whole(self) -> Event:
        return {
            "index": self._index,
            "text": self._text,
            "logprobs": None if self._logprobs is None else self._columns,
            **self._ending,
        }

    def _opening(self) -> list[Event]:
        return self._piece(self._echo.text, self._echo.columns)

    def _output(self, chunk: Chunk) -> list[Event]:
        columns = _no_columns()
        if self._logprobs is not None and chunk.logprobs is not None:
            scores = chunk.logprobs
            columns = self._logprobs.columns(
                self._spelling.all(chunk.ids), scores.chosen, scores.top_ids, scores.top
            )
        news = self._piece(chunk.text, columns)
        if chunk.finish is not None:
            self._ending = ending(chunk.finish)
            last = news or [self._event("", columns)]
            news = [last[0] | self._ending]
        return news

    def _piece(self, text: str, columns: Columns) -> list[Event]:
        self._text += text
        for name, column in columns.items():
            self._columns[name] += column
        return [self._event(text, columns)] if text or columns["tokens"] else []

    def _event(self, text: str, columns: Columns) -> Event:
        return {
            "index": self._index,
            "text": text,
            "logprobs": columns if columns["tokens"] else None,
            "finish_reason": None,
        }


def _no_columns() -> Columns:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _check_counts(given: CompletionRequest) -> None:
    best = given.logprobs
    if best is not None and not 0 <= best <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"logprobs must be from 0 to {MAX_TOP_LOGPROBS}", param="logprobs")
    if given.best_of is not None and given.best_of != given.n:
        raise InvalidRequest(
            "best_of is not supported yet, other than equal to n",
            param="best_of",
            code="unsupported_parameter",
        )
