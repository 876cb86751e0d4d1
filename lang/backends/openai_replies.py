"""Replies in OpenAI's dialect as replies to a program.

Owns: reading them. Raises BackendError where one is not in that dialect. Must not know: requests,
sockets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from radixserve.lang.backends.base import Body, Reply
from radixserve.lang.backends.foreign import text_reply
from radixserve.lang.backends.foreign_tools import Calling
from radixserve.lang.choices import common_prefix
from radixserve.lang.errors import BackendError


def read_reply(body: Body, reply: Any) -> Reply | list[Reply]:
    """One output, or a list of n."""
    try:
        usage = _usage(reply.get("usage"))
        choices = sorted(reply["choices"], key=lambda each: each["index"])
        outputs = [
            text_reply(
                body, _text_of(each), _reason(each["finish_reason"]), usage, **_logprobs(each)
            )
            | _calls_of(each).beside(body)
            for each in choices
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise _malformed(error) from None
    return outputs[0] if body["sampling_params"].get("n", 1) == 1 else outputs


class Growing:
    """A streamed output, cumulative."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._text = ""
        self._reason: dict[str, Any] | None = None
        self._usage: dict[str, int] = {}
        self._logprobs: list[Any] = []
        self._calls = Calling()

    def take(self, event: dict[str, Any]) -> Iterator[Reply]:
        try:
            self._usage = _usage(event.get("usage")) or self._usage
            for choice in event["choices"]:
                delta = choice["delta"].get("content") if "delta" in choice else choice["text"]
                called = choice["delta"].get("tool_calls") if "delta" in choice else None
                self._calls.add_openai(called)
                self._text += delta or ""
                self._logprobs += _logprobs(choice).get("output_token_logprobs", [])
                if choice.get("finish_reason"):
                    self._reason = _reason(choice["finish_reason"])
                elif delta or called:
                    calls = self._calls.beside(self._body)
                    yield text_reply(self._body, self._text, None, {}) | calls
        except (KeyError, TypeError, AttributeError) as error:
            raise _malformed(error) from None

    def last(self) -> Reply:
        if self._reason is None:
            raise BackendError(502, "stream_ended", "the stream ended before its finish_reason")
        more = {"output_token_logprobs": self._logprobs} if self._logprobs else {}
        reply = text_reply(self._body, self._text, self._reason, self._usage, **more)
        return reply | self._calls.beside(self._body)


def read_choices(body: Body, reply: Any) -> Reply:
    """Scores of the echoed prompts: the prompt alone, with each choice, then the choices alone.

    A choice's tokens begin where they part from those of the prompt and of the other choices. The
    endpoint tells texts of tokens, not ids; equal texts get equal ids here.
    """
    wanted = body["input"][-1]
    texts, count = wanted["choices"], len(wanted["choices"])
    try:
        echoed = sorted(reply["choices"], key=lambda each: each["index"])
        rows = [each["logprobs"] for each in echoed]
        tokens = [row["tokens"] for row in rows]
        scores = [row["token_logprobs"] for row in rows]
        usage = _usage(reply.get("usage"))
    except (KeyError, TypeError, AttributeError) as error:
        raise _malformed(error) from None
    shared = common_prefix(tokens[: count + 1])
    ids: dict[str, int] = {}
    entries = []
    for i, text in enumerate(texts, start=1):
        own = tokens[i][shared:]
        entry = {
            "text": text,
            "ids": [ids.setdefault(token, len(ids)) for token in own],
            "logprobs": scores[i][shared:],
        }
        if wanted["unconditional"]:
            entry["unconditional_logprobs"] = _alone(scores[count + i], len(own))
        entries.append(entry)
    counts = {"prompt_tokens": shared, "cached_tokens": usage.get("cached_tokens", 0)}
    meta = {"id": body["rid"], "prompt": None, **counts}
    return {"choices": entries, "meta_info": meta}


def _alone(scores: Sequence[float | None], size: int) -> list[float | None]:
    """The last `size`; alone, a choice may begin with other tokens than behind the prompt."""
    return [None] * (size - len(scores)) + list(scores[-size:] if size else [])


def _text_of(choice: dict[str, Any]) -> str:
    if "message" not in choice:
        return str(choice["text"])
    message = choice["message"]
    if message.get("refusal"):
        raise BackendError(422, "refusal", str(message["refusal"]))
    return str(message["content"] or "")


def _calls_of(choice: dict[str, Any]) -> Calling:
    calls = Calling()
    calls.add_openai(choice["message"].get("tool_calls") if "message" in choice else None)
    return calls


def _reason(word: str) -> dict[str, Any]:
    match word:
        case "length":
            return {"type": "length"}
        case "content_filter":
            return {"type": "abort", "message": "the endpoint withheld the output: content_filter"}
        case _:
            return {"type": "stop", "matched": None}


def _usage(usage: dict[str, Any] | None) -> dict[str, int]:
    if not usage:
        return {}
    details = usage.get("prompt_tokens_details") or {}
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage.get("completion_tokens", 0),
        "cached_tokens": details.get("cached_tokens") or 0,
    }


def _logprobs(choice: dict[str, Any]) -> dict[str, Any]:
    """[log-probability, id (not told), text] for each output token."""
    told = choice.get("logprobs")
    if not told:
        return {}
    if "content" in told:
        rows = [[each["logprob"], None, each["token"]] for each in told["content"] or []]
    else:
        pairs = zip(told["token_logprobs"], told["tokens"])
        rows = [[logprob, None, token] for logprob, token in pairs]
    return {"output_token_logprobs": rows}


def _malformed(error: Exception) -> BackendError:
    what = f"{type(error).__name__}: {error}"
    return BackendError(502, "malformed_reply", f"the endpoint's reply is malformed: {what}")
