"""From items to the messages that chat templates take.

Owns: which items make one message. Must not know: how items are read or kept, templates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixserve.api.responses.items import Item
from radixserve.errors import InvalidRequest

Message = dict[str, Any]


def messages_of(earlier: Sequence[Item], given: Sequence[Item]) -> list[Message]:
    """Messages of a whole conversation: `earlier` items, then those of the body's input.

    Reasoning, a message and calls of the assistant that stand in this order, each but the calls at
    most once, are one message. Raises InvalidRequest for a result whose call does not come before.
    """
    messages: list[Message] = []
    called: set[str] = set()
    is_open = False  # the last message is the assistant's, and more may belong to it
    for i, item in enumerate([*earlier, *given]):
        if item["type"] == "function_call":
            called.add(item["call_id"])
        if item["type"] == "function_call_output" and item["call_id"] not in called:
            place = f"input[{i - len(earlier)}].call_id"
            raise InvalidRequest(
                f"{place}: no call {item['call_id']!a:.80} comes before its result", param=place
            )
        mine = _fields(item)
        if is_open and _joins(messages[-1], mine):
            _join(messages[-1], mine)
        else:
            messages.append(mine)
        is_open = mine["role"] == "assistant"
    return messages


def _fields(item: Item) -> Message:
    match item["type"]:
        case "message":
            return {"role": item["role"], "content": _text(item["content"])}
        case "reasoning":
            parts = item["content"] or item["summary"]
            return {"role": "assistant", "reasoning_content": "".join(p["text"] for p in parts)}
        case "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            return {"role": "assistant", "tool_calls": [call]}
    output = item["output"]
    text = output if isinstance(output, str) else _text(output)
    return {"role": "tool", "tool_call_id": item["call_id"], "content": text}


def _text(parts: list[Item]) -> str:
    return "".join(part["refusal" if part["type"] == "refusal" else "text"] for part in parts)


def _joins(message: Message, more: Message) -> bool:
    """Whether `more` of the assistant's may go on in `message`."""
    if more["role"] != "assistant":
        return False
    if "reasoning_content" in more:
        return False
    return "tool_calls" in more or not ({"content", "tool_calls"} & message.keys())


def _join(message: Message, more: Message) -> None:
    if "tool_calls" in message and "tool_calls" in more:
        message["tool_calls"] += more["tool_calls"]
    else:
        message |= more
