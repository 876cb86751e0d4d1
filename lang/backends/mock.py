"""A backend without a model: scripted texts, a byte tokenizer, log-probabilities from a function.

Owns: what tests of programs need to see: the bodies of all calls, and ids that mean something. A
token is a byte, or one of the `pieces` it is given (the longest that fits, as a tokenizer would).
Must not know: sampling, caches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from radixserve.lang.backends.base import Body, Reply
from radixserve.lang.errors import BackendError

BOS, END = 256, 257
_MARKS = {BOS: "<bos>", END: "<end>", 258: "<system>", 259: "<user>", 260: "<assistant>"}
_OPENS = {"system": 258, "user": 259, "assistant": 260}
_FIRST_PIECE = 300

Script = Callable[[str], str | list[str]]
Logprob = Callable[[str, str], float]


@dataclass(frozen=True, slots=True)
class MockTokenizer:
    """Bytes are ids 0..255; piece i is id 300 + i; marks of the prompt are 256..260."""

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
    """replies: texts in the order of calls, or a function of the prompt's text (roles as <user>).

    An exhausted list is an error; a function may return a list for n > 1, and may raise.
    logprob(context, token text): natural logarithm, -1 by default; "" is no context.
    add_bos: prompts begin with BOS. calls: the bodies received. aborted: rids.
    """

    def __init__(
        self,
        replies: Iterable[str] | Script = (),
        *,
        logprob: Logprob | None = None,
        pieces: Iterable[str] = (),
        add_bos: bool = False,
    ) -> None:
        self.tokenizer = MockTokenizer(tuple(pieces))
        self.calls: list[Body] = []
        self.aborted: list[str] = []
        self._script = replies if callable(replies) else _from_list(list(replies))
        self._logprob = logprob or (lambda *_: -1.0)
        self._add_bos = add_bos
        self._seen: list[list[int]] = []
        self._lock = threading.Lock()

    def generate(self, body: Body) -> Reply | list[Reply]:
        prompt = self._receive(body)
        told = self._script(self.tokenizer.decode(prompt["ids"]))
        n = body["sampling_params"].get("n", 1)
        texts = told if isinstance(told, list) else [told] * n
        meta = self._meta(body, prompt)
        outputs = [self._output(text, body["sampling_params"], meta) for text in texts]
        return outputs[0] if n == 1 else outputs

    def stream(self, body: Body) -> Iterator[Reply]:
        """One chunk for each character, then the final reply."""
        reply = self.generate(body)
        assert isinstance(reply, dict), "streams have n = 1"
        meta = {**reply["meta_info"], "finish_reason": None}
        for end in range(1, len(reply["text"])):
            text = reply["text"][:end]
            yield {"text": text, "output_ids": self.tokenizer.encode(text), "meta_info": meta}
        yield reply

    def choose(self, body: Body) -> Reply:
        """Choices compare from the longest token prefix that the prompt and all of them share."""
        asked = body["input"][-1]
        parts = body["input"][:-1]
        tail = parts.pop()["text"] if parts and "text" in parts[-1] else ""
        prompt = self._read(parts)
        before = prompt["ids"]
        encoded = [self.tokenizer.encode(tail + choice) for choice in asked["choices"]]
        shared = _common_prefix([self.tokenizer.encode(tail), *encoded])
        prompt["ids"] = before + encoded[0][:shared]
        self._note(body, prompt)
        scores = [
            self._score(choice, prompt["ids"], ids[shared:], asked["unconditional"])
            for choice, ids in zip(asked["choices"], encoded, strict=True)
        ]
        return {"choices": scores, "meta_info": self._meta(body, prompt)}

    def abort(self, rid: str) -> None:
        self.aborted.append(rid)

    def flush_cache(self) -> None:
        self._seen.clear()

    def get_server_info(self) -> dict[str, Any]:
        return {"model_path": "mock", "calls": len(self.calls)}

    def _receive(self, body: Body) -> dict[str, Any]:
        prompt = self._read(body["input"])
        self._note(body, prompt)
        return prompt

    def _note(self, body: Body, prompt: dict[str, Any]) -> None:
        with self._lock:
            self.calls.append(body)
            cached = [_common_prefix([ids, prompt["ids"]]) for ids in self._seen]
            self._seen.append(prompt["ids"])
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
        """`text` cut by the stop texts and the token limit of the call."""
        ids = self.tokenizer.encode(text)
        stops = [(text.find(stop), stop) for stop in params.get("stop", ()) if stop in text]
        limit = params.get("max_new_tokens", 128)
        kept, rest = len(ids), ""
        if stops:
            at, stop = min(stops)
            text = text[:at]
            kept, rest = self._cut(ids, text)
            reason: dict[str, Any] = {"type": "stop", "matched": stop}
        elif len(ids) >= limit:
            ids = ids[:limit]
            kept, text, reason = limit, self.tokenizer.decode(ids), {"type": "length"}
        else:
            ids, reason = [*ids, END], {"type": "stop", "matched": END}
        counts = {"completion_tokens": len(ids), "kept_ids": kept, "kept_tail": rest}
        return {
            "text": text,
            "output_ids": ids,
            "meta_info": {**meta, "finish_reason": reason, **counts},
        }

    def _cut(self, ids: list[int], text: str) -> tuple[int, str]:
        """How many ids lie wholly in `text`, and what of it they do not spell."""
        kept = len(ids)
        while not text.startswith(self.tokenizer.decode(ids[:kept])):
            kept -= 1
        return kept, text[len(self.tokenizer.decode(ids[:kept])) :]

    def _score(self, choice: str, before: list[int], ids: list[int], alone: bool) -> Reply:
        score = {"text": choice, "ids": ids, "logprobs": self._logprobs(before, ids)}
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


def _from_list(replies: list[str]) -> Script:
    lock, left = threading.Lock(), iter(replies)

    def script(_: str) -> str:
        with lock:
            reply = next(left, None)
        if reply is None:
            raise BackendError(500, "exhausted", "the mock has no reply left")
        return reply

    return script
