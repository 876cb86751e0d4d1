"""What the backends of other people's endpoints have in common: a state that stays text.

Owns: reading parts as messages or as one text, refusing what an endpoint cannot do, the form of a
reply. Must not know: any endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radixserve.lang.backends.base import Body, Reply
from radixserve.lang.errors import Unsupported

# Values of sampling parameters that ask for nothing.
NEUTRAL: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "min_new_tokens": 0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "ignore_eos": False,
    "n": 1,
    "json_object": False,
}


@dataclass(slots=True)
class Conversation:
    """messages: the closed role blocks, as OpenAI's chat has them. open: the role of the open one,
    holding `text`, and `calls`."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    open: str | None = None
    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, role: str) -> None:
        self.open, self.text, self.calls = role, "", []

    def close(self, role: str, **beside: Any) -> None:
        """The open block ends. beside: more of its message."""
        message = {"role": role, "content": self.text, **beside}
        if self.calls:
            message["tool_calls"] = self.calls
        self.messages.append(message)
        self.open, self.text, self.calls = None, "", []


def conversation(parts: Sequence[Mapping[str, Any]], backend: str) -> Conversation:
    """Parts as an endpoint of messages sees them. Raises Unsupported for text outside of roles."""
    read = Conversation()
    result_of: dict[str, str] = {}
    for part in parts:
        match part:
            case {"role_open": str() as role, **call}:
                result_of = {"tool_call_id": call["tool_call_id"]} if call else {}
                read.begin(role)
            case {"role_close": str() as role}:
                read.close(role, **result_of)
            case {"calls": list() as calls}:
                read.calls = read.calls + calls
            case {"text": str() as text}:
                if read.open is None:
                    raise Unsupported(
                        f"{backend} takes messages: {text[:40]!r} is in no role block"
                    )
                read.text += text
            case {"border": _} | {"tools": _}:
                pass
            case _:
                raise Unsupported(f"{backend} cannot take a part {sorted(part)}")
    if read.open != "assistant":
        where = "outside of a role block" if read.open is None else f"in a {read.open} block"
        raise Unsupported(f"{backend} writes in assistant blocks only, not {where}")
    if read.calls:
        raise Unsupported(f"{backend} cannot go on in a block that has called a tool")
    return read


def plain_text(parts: Sequence[Mapping[str, Any]], backend: str) -> str:
    """Parts as one text. Raises Unsupported for role blocks."""
    for part in parts:
        if not part.keys() <= {"text", "border"}:
            raise Unsupported(f"{backend} takes plain text: it has no role blocks")
    return "".join(part.get("text", "") for part in parts)


def asked(body: Body) -> dict[str, Any]:
    """The sampling parameters that ask for something, and the fields beside them that do."""
    said = {
        name: value
        for name, value in body["sampling_params"].items()
        if name not in NEUTRAL or value != NEUTRAL[name]
    }
    beside = {name: body[name] for name in ("return_logprob", "top_logprobs_num") if body.get(name)}
    return said | beside | reasoning(body)


def reasoning(body: Body) -> dict[str, Any]:
    """What a body asks of the model's reasoning."""
    found = {"separate_reasoning": body.get("separate_reasoning") or None}
    found["thinking_token_budget"] = body.get("thinking_token_budget")
    return {name: value for name, value in found.items() if value is not None}


def refuse_rest(rest: Mapping[str, Any], backend: str, hint: str = "") -> None:
    """Raise Unsupported naming the first of what is left to ask for."""
    for name, value in rest.items():
        raise Unsupported(f"{backend} cannot do {name} = {value!r}{hint}")


def refuse_scores(body: Body, backend: str) -> None:
    if body.get("logprob_start_len", -1) >= 0:
        raise Unsupported(f"{backend} gives no log-probabilities of the prompt: logprob_start_len")


def text_reply(
    body: Body, text: str, reason: dict[str, Any] | None, usage: Mapping[str, int], **more: Any
) -> Reply:
    """A reply without ids. reason: None in a chunk that is not the last. usage: named counts."""
    meta = {"id": body["rid"], "prompt": None, "finish_reason": reason, **usage, **more}
    return {"text": text, "output_ids": [], "meta_info": meta}
