"""What a backend's reply means, checked once where it arrives.

Owns: the shape of replies. Raises BackendError where one is not what the call asked for. Must not
know: states, variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from radixserve.lang.choices import Candidate
from radixserve.lang.errors import BackendError, ProgramError
from radixserve.lang.prompt import Part

Reply = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Generated:
    """One output. kept: [k] its ids that stay in the state; rest: kept text beyond what they spell.

    calls: of tools, as OpenAI's chat has them. meta: what get_meta_info() shows. prompt: the ids
    part that replaces what was sent; None from a backend that keeps no ids, where the state stays
    text.
    """

    text: str
    kept: list[int]
    rest: str
    prompt: Part | None
    meta: dict[str, Any]
    calls: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Scored:
    """The choices of one select, in the order they were sent."""

    candidates: list[Candidate]
    prompt: Part | None
    meta: dict[str, Any]


def read_generated(reply: object, n: int) -> list[Generated]:
    """reply: one dict for n == 1, a list of n otherwise."""
    replies = reply if isinstance(reply, list) else [reply]
    if len(replies) != n:
        _malformed(f"{len(replies)} outputs for n = {n}")
    return [_read_output(each) for each in replies]


def _read_output(reply: object) -> Generated:
    if not isinstance(reply, dict):
        _malformed(f"a generation is an object, not {reply!r}")
    meta, prompt = _read_meta(reply)
    reason = meta.get("finish_reason")
    if not isinstance(reason, dict):
        _malformed(f"finish_reason is {reason!r} in a final reply")
    if reason.get("type") == "abort":
        message = str(reason.get("message") or "the call was aborted")
        code = str(reason.get("err_type") or "cancelled")
        raise BackendError(int(reason.get("status_code") or 499), code, message)
    try:
        ids = list(reply["output_ids"])
        kept = ids[: meta.pop("kept_ids", len(ids))]
        calls = [_read_call(each) for each in reply.get("tool_calls") or ()]
        return Generated(reply["text"], kept, meta.pop("kept_tail", ""), prompt, meta, calls)
    except KeyError as missing:
        _malformed(f"a generation without {missing}")


def _read_call(call: Any) -> dict[str, Any]:
    match call:
        case {"id": str(), "function": {"name": str(), "arguments": str()}}:
            return dict(call)
    return _malformed(f"a call is an object with an id and a function, not {call!r}")


def read_scored(reply: object, choices: tuple[str, ...], unconditional: bool) -> Scored:
    if not isinstance(reply, dict) or not isinstance(reply.get("choices"), list):
        _malformed(f"scores of choices are an object with a list of choices, not {reply!r}")
    entries = reply["choices"]
    if len(entries) != len(choices):
        _malformed(f"{len(entries)} scores for {len(choices)} choices")
    meta, prompt = _read_meta(reply)
    pairs = zip(choices, entries, strict=True)
    return Scored([_read_choice(text, each, unconditional) for text, each in pairs], prompt, meta)


def _read_choice(text: str, entry: dict[str, Any], unconditional: bool) -> Candidate:
    try:
        ids, logprobs = tuple(entry["ids"]), tuple(entry["logprobs"])
        without = tuple(entry["unconditional_logprobs"]) if unconditional else None
    except KeyError as missing:
        _malformed(f"choice {text!r} without {missing}")
    if len(logprobs) != len(ids) or (without is not None and len(without) != len(ids)):
        _malformed(f"choice {text!r} has {len(ids)} ids but {len(logprobs)} log-probabilities")
    if None in logprobs:
        raise ProgramError(
            "select() has nothing to go by at the very start of a prompt: this model scores no "
            "first token; append some text before it"
        )
    return Candidate(text, ids, logprobs, without)


def _read_meta(reply: dict[str, Any]) -> tuple[dict[str, Any], Part | None]:
    meta = dict(reply.get("meta_info") or {})
    if "reasoning_content" in reply:
        meta["reasoning_content"] = reply["reasoning_content"]
    prompt = meta.pop("prompt", ...)
    if prompt is None:
        return meta, None
    if not isinstance(prompt, dict) or "ids" not in prompt:
        _malformed("meta_info has no prompt ids, although the input was parts")
    return meta, prompt


def _malformed(what: str) -> NoReturn:
    raise BackendError(502, "malformed_reply", f"the backend's reply is malformed: {what}")
