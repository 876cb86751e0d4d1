"""A backend without a model: scripted or made-up texts, a byte tokenizer, log-probabilities from a
function.

Owns: what tests of programs need to see: the bodies of all calls, and ids that mean something. A
token is a byte, or one of the `pieces` it is given (the longest that fits, as a tokenizer would).
Must not know: sampling, caches.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import json
import math
import random
import re
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
from dataclasses import dataclass
from typing import Any

from radixserve.lang.backends import foreign, mock_calls
from radixserve.lang.backends.base import Body, Reply
from radixserve.lang.backends.samples import is_constrained, sample
from radixserve.lang.backends.scripts import Function, Told, as_script
from radixserve.lang.backends.threaded import ThreadedBackend
from radixserve.lang.errors import BackendError

BOS, END = 256, 257
_MARKS = {
    BOS: "<bos>",
    END: "<end>",
    258: "<system>",
    259: "<user>",
    260: "<assistant>",
    261: "<tool>",
}
_OPENS = {"system": 258, "user": 259, "assistant": 260, "tool": 261}
_FIRST_PIECE = 300

# Log-probabilities of the tokens of a choice that a reply picks, and of one that it passes over.
_SURE, _NEVER = -0.001, -20.0

Logprob = Callable[[str, str], float]


@dataclass(frozen=True, slots=True)
class MockTokenizer:
    """Bytes are ids 0..255; piece i is id 300 + i; marks of the prompt are 256..261."""

    pieces: tuple[str, ...] = ()

    def encode(self, text: str) -> list[int]:
        data, ids, at = text.encode(), [], 0
        encoded = [piece.encode() for piece in self.pieces]
        while at < len(data):
            fits = [i for i, piece in enumerate(encoded) if data.startswith(piece, at)]
            best = max(fits, key=lambda i: len(encoded[i]), default=None)
            ids.append(data[at] if best is None else _FIRST_PIECE + best)
            at += 1 if best is None else len(encoded[best])
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self._bytes(each) for each in ids).decode(errors="replace")

    def _bytes(self, token: int) -> bytes:
        if token >= _FIRST_PIECE:
            return self.pieces[token - _FIRST_PIECE].encode()
        return bytes([token]) if token < BOS else _MARKS[token].encode()


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
            output = {**self._output(text, {"max_new_tokens": math.inf}, meta), "text": turn.text}
        else:
            output = self._output(turn.text, body["sampling_params"], meta)
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
        prompt = self._read(parts)
        before = prompt["ids"]
        encoded = [self.tokenizer.encode(tail + choice) for choice in asked["choices"]]
        shared = _common_prefix([self.tokenizer.encode(tail), *encoded])
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
        prompt = self._read(body["input"])
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
        cached = [_common_prefix([ids, prompt["ids"]]) for ids in beside]
        prompt["cached"] = max(cached, default=0)

    def _read(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Ids of the parts; each segment of text is tokenised alone."""
        ids: list[int] = [BOS] if self._add_bos and not (parts and "ids" in parts[0]) else []
        roles: list[str] = []
        opened: str | None = None
        for part in parts:
            match part:
                case {"ids": known, "roles": roles, "open": opened}:
                    ids, roles = [*ids, *known], list(roles)
                case {"tools": tools} if any("ids" in each for each in parts):
                    pass  # they stand in the ids
                case {"tools": tools}:
                    ids += self.tokenizer.encode(f"<tools>{json.dumps(tools)}</tools>")
                case {"text": text}:
                    ids += self.tokenizer.encode(text)
                case {"role_open": opened}:
                    ids.append(_OPENS[opened])
                case {"role_close": role}:
                    ids.append(END)
                    roles, opened = [*roles, role], None
                case {"border": True}:
                    pass
                case _:
                    raise BackendError(400, "invalid_request", f"unknown part {part!r}", "input")
        return {"ids": ids, "roles": roles, "open": opened}

    def _meta(self, body: Body, prompt: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": body["rid"],
            "prompt_tokens": len(prompt["ids"]),
            "cached_tokens": prompt.pop("cached"),
            "prompt": prompt,
        }

    def _output(self, text: str, params: dict[str, Any], meta: dict[str, Any]) -> Reply:
        """`text` cut by the stop texts, patterns and the token limit of the call."""
        limit = params.get("max_new_tokens", 128) if self._cuts else math.inf
        ids, pattern = self._matched(self.tokenizer.encode(text), params.get("stop_regex", ()))
        text = self.tokenizer.decode(ids) if pattern else text
        stops = [(text.find(stop), stop) for stop in params.get("stop", ()) if stop in text]
        kept, rest = len(ids), ""
        if stops:
            at, stop = min(stops)
            text = text[:at]
            kept, rest = self._cut(ids, text)
            reason: dict[str, Any] = {"type": "stop", "matched": stop}
        elif pattern and len(ids) <= limit:
            reason = {"type": "stop", "matched": pattern}
        elif len(ids) >= limit:
            ids = ids[: int(limit)]
            kept, text, reason = len(ids), self.tokenizer.decode(ids), {"type": "length"}
        else:
            ids, reason = [*ids, END], {"type": "stop", "matched": END}
        counts = {"completion_tokens": len(ids), "kept_ids": kept, "kept_tail": rest}
        return {
            "text": text,
            "output_ids": ids,
            "meta_info": {**meta, "finish_reason": reason, **counts},
        }

    def _matched(self, ids: list[int], patterns: Sequence[str]) -> tuple[list[int], str | None]:
        """The ids up to the one in which the text first matches, and the pattern that does."""
        for count in range(1, len(ids) + 1) if patterns else ():
            text = self.tokenizer.decode(ids[:count]).rstrip("\ufffd")
            for pattern in patterns:
                if re.search(pattern, text):
                    return ids[:count], pattern
        return ids, None

    def _add_logprobs(self, output: Reply, before: list[int]) -> None:
        ids = output["output_ids"]
        rows = zip(self._logprobs(before, ids), ids)
        output["meta_info"]["output_token_logprobs"] = [
            [logprob, token, self.tokenizer.decode([token])] for logprob, token in rows
        ]

    def _cut(self, ids: list[int], text: str) -> tuple[int, str]:
        """How many ids lie wholly in `text`, and what of it they do not spell."""
        kept = len(ids)
        while not text.startswith(self.tokenizer.decode(ids[:kept])):
            kept -= 1
        return kept, text[len(self.tokenizer.decode(ids[:kept])) :]

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


def _common_prefix(sequences: list[list[int]]) -> int:
    same = 0
    for column in zip(*sequences):
        if len(set(column)) > 1:
            break
        same += 1
    return same
