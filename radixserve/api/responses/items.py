"""Items: what goes into a response and comes out of one.

Owns: what an item may hold, the whole form in which it is kept and shown. Must not know: chat
templates, requests, where items are kept.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from radixserve.api.faults import NotFound
from radixserve.errors import InvalidRequest
from radixserve.native.fields import Name, read

Item = dict[str, Any]
Find = Callable[[str], Item | None]  # an item that is kept, by its id

MAX_ITEMS = 10_000
Status = Literal["in_progress", "completed", "incomplete"]

# phase: which of several messages it is, to a model that knows phases.
REFUSED_MESSAGE: dict[str, tuple[Any, ...]] = {"phase": ()}
# Calls that a program made; functions in namespaces.
REFUSED_CALL: dict[str, tuple[Any, ...]] = {
    "caller": ({"type": "direct"},),
    "namespace": (),
    "created_by": (),
}
REFUSED_REASONING: dict[str, tuple[Any, ...]] = {"encrypted_content": ()}
REFUSED_PART: dict[str, tuple[Any, ...]] = {"prompt_cache_breakpoint": ()}


class MessageItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """content: text, or parts."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Any]
    type: Literal["message"] = "message"
    id: Name = ""
    status: Status = "completed"


class CallItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A call that the model made. parsed_arguments: what a client made of them; not read."""

    call_id: Name
    name: str
    arguments: str
    type: Literal["function_call"]
    id: Name = ""
    status: Status = "completed"
    parsed_arguments: Any = None


class OutputItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a call gave. output: text, or parts. name: of the function; the call has it, too."""

    call_id: Name
    output: str | list[Any]
    type: Literal["function_call_output"]
    id: Name = ""
    status: Status = "completed"
    name: Name = ""


class ReasoningItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the model thought. summary: stands for content where there is none."""

    type: Literal["reasoning"]
    id: Name = ""
    summary: list[SummaryPart] = []
    content: list[ReasoningPart] = []
    status: Status = "completed"


class SummaryPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    text: str
    type: Literal["summary_text"]


class ReasoningPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    text: str
    type: Literal["reasoning_text"]


class ReferenceItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An item that is kept, in its place."""

    id: Name
    type: Literal["item_reference"] = "item_reference"


class TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """annotations, logprobs: of an output; not read. parsed: what a client made of the text."""

    text: str
    type: Literal["input_text", "output_text"]
    annotations: list[Any] = []
    logprobs: list[Any] = []
    parsed: Any = None


class RefusalPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    refusal: str
    type: Literal["refusal"]


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def read_items(given: str | list[Any], find: Find) -> list[Item]:
    """The items of `input` in their whole form, each with an id. Raises InvalidRequest naming the
    place, NotFound for a reference to what is not kept."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    check_count(len(given))
    return [_item(raw, f"input[{i}]", find) for i, raw in enumerate(given)]


def check_count(count: int) -> None:
    if count > MAX_ITEMS:
        raise InvalidRequest(f"{count} items; {MAX_ITEMS} are possible", param="input")


def _item(raw: object, at: str, find: Find) -> Item:
    match _kind(raw):
        case "message":
            return _message(read(MessageItem, raw, refused=REFUSED_MESSAGE, at=at), at)
        case "function_call":
            return _call(read(CallItem, raw, refused=REFUSED_CALL, at=at))
        case "function_call_output":
            return _output(read(OutputItem, raw, refused=REFUSED_CALL, at=at), at)
        case "reasoning":
            return _reasoning(read(ReasoningItem, raw, refused=REFUSED_REASONING, at=at))
        case "item_reference":
            return _referred(read(ReferenceItem, raw, at=at).id, at, find)
        case kind:
            raise InvalidRequest(
                f"{at}: there are no items of type {kind!a:.60} here",
                param=f"{at}.type",
                code="unsupported_parameter",
            )


def _kind(raw: object) -> object:
    """A message and a reference need not say what they are."""
    if not isinstance(raw, dict):
        return "message"  # whose reading says that it is none
    kind = raw.get("type")
    if kind is None:
        return "item_reference" if raw.keys() <= {"id", "type"} else "message"
    return kind


def _message(given: MessageItem, at: str) -> Item:
    is_output = given.role == "assistant"
    if isinstance(given.content, str):
        parts = [_text(given.content, is_output)]
    else:
        parts = _parts(given.content, f"{at}.content", is_output)
    return {
        "id": given.id or new_id("msg"),
        "type": "message",
        "role": given.role,
        "status": given.status,
        "content": parts,
    }


def _parts(given: list[Any], at: str, is_output: bool) -> list[Item]:
    if not given:
        raise InvalidRequest(f"{at} has no parts", param=at)
    return [_part(raw, f"{at}[{i}]", is_output) for i, raw in enumerate(given)]


def _part(raw: object, at: str, is_output: bool) -> Item:
    kind = raw.get("type") if isinstance(raw, dict) else "input_text"
    if kind == "refusal" and is_output:
        return {"type": "refusal", "refusal": read(RefusalPart, raw, at=at).refusal}
    if kind != "input_text" and not (kind == "output_text" and is_output):
        raise InvalidRequest(
            f"{at}: parts of type {kind!a:.60} are not supported here; this model reads text only",
            param=f"{at}.type",
            code="unsupported_parameter",
        )
    return _text(read(TextPart, raw, refused=REFUSED_PART, at=at).text, is_output)


def _text(text: str, is_output: bool) -> Item:
    if is_output:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def _call(given: CallItem) -> Item:
    return {
        "id": given.id or new_id("fc"),
        "type": "function_call",
        "call_id": given.call_id,
        "name": given.name,
        "arguments": given.arguments,
        "status": given.status,
    }


def _output(given: OutputItem, at: str) -> Item:
    output = given.output
    return {
        "id": given.id or new_id("fco"),
        "type": "function_call_output",
        "call_id": given.call_id,
        "output": output if isinstance(output, str) else _parts(output, f"{at}.output", False),
        "status": given.status,
    }


def _reasoning(given: ReasoningItem) -> Item:
    return {
        "id": given.id or new_id("rs"),
        "type": "reasoning",
        "summary": msgspec.to_builtins(given.summary),
        "content": msgspec.to_builtins(given.content),
        "status": given.status,
    }


def _referred(name: str, at: str, find: Find) -> Item:
    found = find(name)
    if found is None:
        raise NotFound(
            f"{at}: there is no item {name!a:.80}; replies and their items are kept for a while, "
            f"and with store: false not at all",
            param=f"{at}.id",
            code="item_not_found",
        )
    return found
