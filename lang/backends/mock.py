"""A backend without a model: scripted or made-up texts, log-probabilities from a function.

Owns: what tests of programs need to see: the bodies of all calls, what was answered. Its tokens
stand in mock_tokens.py, where its texts end in mock_endings.py. Must not know: sampling, caches.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import math
import random
import threading
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any

from radixserve.lang.backends import foreign, mock_calls
from radixserve.lang.backends.base import Body, Reply
from radixserve.lang.backends.mock_endings import ended
from radixserve.lang.backends.mock_tokens import MockTokenizer
from radixserve.lang.backends.samples import is_constrained, sample
from radixserve.lang.backends.scripts import Function, Told, as_script
from radixserve.lang.backends.threaded import ThreadedBackend
from radixserve.lang.choices import common_prefix
from radixserve.lang.errors import BackendError

# Log-probabilities of the tokens of a choice that a reply picks, and of one that it passes over.
_SURE, _NEVER = -0.001, -20.0

Logprob = Callable[[str, str], float]


class Mock:
    """replies: texts in the order of calls; or a map, of which the key that occurs last in the
    prompt gives the text; or a function of the prompt's text (roles as <user>).

    A Turn is a reply with calls of tools. A list that is used up is an error. A function may take
    the body as a second argument, may return a list for n > 1, and may raise. A call with a
    constraint that no reply is left for, or every call where `choices` or `regex` is given, gets a
    random text that fits; seed: of those.

    A select takes a reply too: of a list the next, which has to be one of its choices, of a map
    the last that is one, of a function what it returns, or the first choice if that is none. Where
    no reply is left it is drawn, by seed and prompt. With logprob(context, token text) selects take
    no reply and are scored by it: natural logarithm, -1 where it is not given; "" is no context.

    cuts: replies end at max_tokens, a token being a byte or piece. add_bos: prompts begin with BOS.
    latency: seconds that each call takes. is_instant: the function never waits, so an event loop
    may call it. prompts: the texts of the calls' prompts. calls: their bodies. aborted: rids.
    """

    def __init__(  # noqa: PLR0913 - each is a knob of its own
        self,
        replies: Iterable[str] | Mapping[str, str] | Function = (),
        *,
        choices: Sequence[str] | None = None,
        regex: str | None = None,
        seed: int = 0,
        logprob: Logprob | None = None,
        pieces: Iterable[str] = (),
        cuts: bool = False,
        add_bos: bool = False,
        latency: float = 0.0,
        is_instant: bool = False,
    ) -> None:
        self.tokenizer = MockTokenizer(tuple(pieces))
        self.calls: list[Body] = []
        self.prompts: list[str] = []
        self.aborted: list[str] = []
        self._script = as_script(replies)
        self._free = {"choice": choices, "regex": regex}
        self._seed = seed
        self._rng = random.Random(seed)
        self._is_scored = logprob is not None
        self._logprob = logprob or (lambda *_: -1.0)
        self._cuts = cuts
        self._add_bos = add_bos
        self._latency = latency
        self._is_instant = is_instant or not callable(replies)
        self._seen: list[list[int]] = []
        self._count = 0  # of calls of tools
        self._lock = threading.Lock()

    async def agenerate(self, body: Body) -> Reply | list[Reply]:
        if not self._is_on_loop("generate"):
            return await ThreadedBackend(self).agenerate(body)
        await self._rest(body)
        return self._reply(body)

    async def achoose(self, body: Body) -> Reply:
        if not self._is_on_loop("choose"):
            return await ThreadedBackend(self).achoose(body)
        await self._rest(body)
        return self._scores(body)

    async def astream(self, body: Body) -> AsyncGenerator[Reply, None]:
        if not self._is_on_loop("stream"):
            async with contextlib.aclosing(ThreadedBackend(self).astream(body)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        await self._rest(body)
        for chunk in self._chunks(body):
            await asyncio.sleep(0)
            yield chunk

    def _is_on_loop(self, verb: str) -> bool:
        """Not where a script, or a subclass's own method, may wait."""
        return self._is_instant and getattr(type(self), verb) is getattr(Mock, verb)

    async def _rest(self, body: Body) -> None:
        try:
            if self._latency:
                await asyncio.sleep(self._latency)
        except asyncio.CancelledError:
            self.abort(body["rid"])
            raise

    def generate(self, body: Body) -> Reply | list[Reply]:
        time.sleep(self._latency)
        return self._reply(body)

    def stream(self, body: Body) -> Iterator[Reply]:
        """One chunk for each character, then the final reply."""
        time.sleep(self._latency)
        return self._chunks(body)

    def choose(self, body: Body) -> Reply:
        """Choices compare from the longest token prefix that the prompt and all of them share."""
        time.sleep(self._latency)
        return self._scores(body)

    def _reply(self, body: Body) -> Reply | list[Reply]:
        prompt = self._receive(body)
        n = body["sampling_params"].get("n", 1)
        told = self._told(body, self.tokenizer.decode(prompt["ids"]), n)
        texts = told if isinstance(told, list) else [told] * n
        meta = self._meta(body, prompt)
        outputs = [self._turn(text, body, meta) for text in texts]
        if body.get("return_logprob"):
            for output in outputs:
                self._add_logprobs(output, prompt["ids"])
        return outputs[0] if n == 1 else outputs

    def _turn(self, said: str, body: Body, meta: dict[str, Any]) -> Reply:
        turn = mock_calls.turn_said(said, body)
        if turn.calls:
            text = turn.text + mock_calls.markup(turn.calls)
            whole = ended(text, {}, meta, self.tokenizer, math.inf)
            output = {**whole, "text": turn.text}
        else:
            params = body["sampling_params"]
            limit = params.get("max_new_tokens", 128) if self._cuts else math.inf
            output = ended(turn.text, params, meta, self.tokenizer, limit)
        if mock_calls.names_in(body):
            with self._lock:
                first, self._count = self._count, self._count + len(turn.calls)
            output["tool_calls"] = mock_calls.calls_to_json(turn.calls, first)
        return output

    def _told(self, body: Body, prompt: str, n: int) -> Told:
        if any(self._free.values()):
            return self._made_up(self._free, n)
        try:
            return self._script.say(prompt, body)
        except BackendError as error:
            if error.code == "exhausted" and mock_calls.must_call(body):
                with self._lock:
                    return [mock_calls.made_up(body, self._rng) for _ in range(n)]
            if error.code != "exhausted" or not is_constrained(body["sampling_params"]):
                raise
        return self._made_up(body["sampling_params"], n)

    def _made_up(self, params: Mapping[str, Any], n: int) -> list[str]:
        with self._lock:
            return [sample(params, self._rng) or "" for _ in range(n)]

    def _chunks(self, body: Body) -> Iterator[Reply]:
        reply = self._reply(body)
        assert isinstance(reply, dict), "streams have n = 1"
        meta = {**reply["meta_info"], "finish_reason": None}
        for end in range(1, len(reply["text"])):
            text = reply["text"][:end]
            yield {"text": text, "output_ids": self.tokenizer.encode(text), "meta_info": meta}
        yield reply

    def _scores(self, body: Body) -> Reply:
        asked = body["input"][-1]
        parts = body["input"][:-1]
        tail = parts.pop()["text"] if parts and "text" in parts[-1] else ""
        prompt = self.tokenizer.read(parts, bos=self._add_bos)
        before = prompt["ids"]
        encoded = [self.tokenizer.encode(tail + choice) for choice in asked["choices"]]
        shared = common_prefix([self.tokenizer.encode(tail), *encoded])
        prompt["ids"] = before + encoded[0][:shared]
        text = self.tokenizer.decode(before) + tail
        self._note(body, prompt, text)
        picked = self._picked(body, text, asked["choices"])
        scores = [
            self._score(choice, prompt["ids"], ids[shared:], asked["unconditional"], picked)
            for choice, ids in zip(asked["choices"], encoded, strict=True)
        ]
        return {"choices": scores, "meta_info": self._meta(body, prompt)}

    def _picked(self, body: Body, prompt: str, choices: list[str]) -> str | None:
        """What a reply picks, or the seed; None where the log-probabilities decide."""
        if self._is_scored:
            return None
        reply = self._script.pick(prompt, body, choices)
        # By the prompt: calls that run side by side come in any order.
        drawn = random.Random(f"{self._seed}/{prompt}").choice(choices)
        return drawn if reply is None else reply

    def abort(self, rid: str) -> None:
        self.aborted.append(rid)

    def warm(self, body: Body) -> Reply:
        return {"meta_info": self._meta(body, self._receive(body))}

    def flush_cache(self) -> None:
        self._seen.clear()

    def get_server_info(self) -> dict[str, Any]:
        return {"model_path": "mock", "calls": len(self.calls)}

    def _receive(self, body: Body) -> dict[str, Any]:
        self._refuse_unknown(body)
        prompt = self.tokenizer.read(body["input"], bos=self._add_bos)
        self._note(body, prompt, self.tokenizer.decode(prompt["ids"]))
        return prompt

    def _refuse_unknown(self, body: Body) -> None:
        unsure = {"field_logprobs": body["sampling_params"].get("field_logprobs") or None}
        asked = foreign.reasoning(body) | {k: v for k, v in unsure.items() if v is not None}
        foreign.refuse_rest(asked, "Mock")

    def _note(self, body: Body, prompt: dict[str, Any], text: str) -> None:
        with self._lock:
            self.calls.append(body)
            self.prompts.append(text)
            # In order, what shares the longest beginning with a prompt stands beside it.
            at = bisect.bisect(self._seen, prompt["ids"])
            beside = self._seen[max(0, at - 1) : at + 1]
            self._seen.insert(at, prompt["ids"])
        cached = [common_prefix([ids, prompt["ids"]]) for ids in beside]
        prompt["cached"] = max(cached, default=0)

    def _meta(self, body: Body, prompt: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": body["rid"],
            "prompt_tokens": len(prompt["ids"]),
            "cached_tokens": prompt.pop("cached"),
            "prompt": prompt,
        }

    def _add_logprobs(self, output: Reply, before: list[int]) -> None:
        ids = output["output_ids"]
        rows = zip(self._logprobs(before, ids), ids)
        output["meta_info"]["output_token_logprobs"] = [
            [logprob, token, self.tokenizer.decode([token])] for logprob, token in rows
        ]

    def _score(
        self, choice: str, before: list[int], ids: list[int], alone: bool, picked: str | None
    ) -> Reply:
        known = [_SURE if choice == picked else _NEVER] * len(ids)
        logprobs = self._logprobs(before, ids) if picked is None else known
        score = {"text": choice, "ids": ids, "logprobs": logprobs}
        return score | ({"unconditional_logprobs": self._logprobs([], ids)} if alone else {})

    def _logprobs(self, before: list[int], ids: list[int]) -> list[float]:
        decode = self.tokenizer.decode
        return [
            self._logprob(decode([*before, *ids[:i]]), decode([token]))
            for i, token in enumerate(ids)
        ]
