"""From messages of blocks to messages as chat templates take them.

Owns: turns that are joined, calls and their results, the answer that a client has begun. Must not
know: templates, fields beside system and messages.

Neighbouring messages of one role are one turn, with an empty line between their texts; blocks of
one message follow each other with nothing between. Results become messages of role tool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from radixserve.api.anthropic.blocks import (
    Block,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    blocks_of,
)
from radixserve.errors import InvalidRequest
from radixserve.native.fields import read

MAX_MESSAGES = 10_000
BETWEEN_TURNS = "\n\n"
ERROR = "Error: "  # before the result of a call that failed

Role = Literal["user", "assistant", "system"]
_Calls = dict[str, str]  # the ids of calls that want a result, with their places


class InputMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: Role
    content: str | list[Any]


@dataclass(slots=True)
class _Turn:
    """messages: the blocks of each message, and the place of each block."""

    role: Role
    messages: list[list[tuple[Block, str]]]

    @property
    def placed(self) -> list[tuple[Block, str]]:
        return [each for message in self.messages for each in message]

    def text(self) -> str:
        texts = (
            "".join(block.text for block, _ in message if isinstance(block, TextBlock))
            for message in self.messages
        )
        return BETWEEN_TURNS.join(text for text in texts if text)


@dataclass(frozen=True, slots=True)
class Conversation:
    """messages: in the shape of Ask. is_begun: the last is an answer that goes on."""

    messages: list[dict[str, Any]]
    is_begun: bool


def conversation_of(system: str | list[Any], given: list[Any]) -> Conversation:
    """Raises InvalidRequest naming the place."""
    if not 1 <= len(given) <= MAX_MESSAGES:
        raise InvalidRequest(
            f"messages has {len(given)} entries; from 1 to {MAX_MESSAGES} are allowed",
            param="messages",
        )
    turns = _turns(given)
    told: list[dict[str, Any]] = []
    blocks = blocks_of(system, "system", "system")
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    if text:
        told.append({"role": "system", "content": text})
    calls: _Calls = {}
    for turn in turns:
        calls = _tell(turn, calls, told)
    _check_answered(calls)
    return Conversation(told, turns[-1].role == "assistant")


def _turns(given: list[Any]) -> list[_Turn]:
    turns: list[_Turn] = []
    for i, raw in enumerate(given):
        at = f"messages[{i}]"
        message = read(InputMessage, raw, at=at)
        place = f"{at}.content"
        if message.content == [] and not (i == len(given) - 1 and message.role == "assistant"):
            raise InvalidRequest(f"{place} has no blocks", param=place)
        blocks = blocks_of(message.content, message.role, place)
        placed = [(block, f"{place}[{j}]") for j, block in enumerate(blocks)]
        if turns and turns[-1].role == message.role:
            turns[-1].messages.append(placed)
        else:
            turns.append(_Turn(message.role, [placed]))
    return turns


def _tell(turn: _Turn, calls: _Calls, told: list[dict[str, Any]]) -> _Calls:
    """Append what `turn` becomes to `told`. calls: of the turn before. Returns those of this."""
    if turn.role == "user":
        calls = _tell_results(turn, calls, told)
    _check_answered(calls)
    if turn.role == "assistant":
        return _tell_answer(turn, told)
    if any(isinstance(block, TextBlock) for block, _ in turn.placed):
        told.append({"role": turn.role, "content": turn.text()})
    return {}


def _check_answered(calls: _Calls) -> None:
    for name, at in calls.items():
        raise InvalidRequest(
            f"{at}: the call {name!a:.80} has no tool_result in the turn behind it", param=at
        )


def _tell_answer(turn: _Turn, told: list[dict[str, Any]]) -> _Calls:
    uses = [(block, at) for block, at in turn.placed if isinstance(block, ToolUseBlock)]
    thoughts = [block.thinking for block, _ in turn.placed if isinstance(block, ThinkingBlock)]
    message: dict[str, Any] = {"role": "assistant", "content": turn.text()}
    if uses:
        message["content"] = message["content"] or None
        message["tool_calls"] = [_call(use) for use, _ in uses]
    if thoughts:
        message["reasoning_content"] = BETWEEN_TURNS.join(thoughts)
    told.append(message)
    found: _Calls = {}
    for use, at in uses:
        if use.id in found:
            raise InvalidRequest(f"{at}.id: {use.id!a:.80} stands twice", param=f"{at}.id")
        found[use.id] = at
    return found


def _call(use: ToolUseBlock) -> dict[str, Any]:
    function = {"name": use.name, "arguments": use.input}
    return {"id": use.id, "type": "function", "function": function}


def _tell_results(turn: _Turn, calls: _Calls, told: list[dict[str, Any]]) -> _Calls:
    """Append the results; they come first in their turn. Returns the calls that have none."""
    left = dict(calls)
    is_past = False
    for block, at in turn.placed:
        if not isinstance(block, ToolResultBlock):
            is_past = True
            continue
        if is_past:
            raise InvalidRequest(f"{at}: tool_result blocks come first in their turn", param=at)
        if left.pop(block.tool_use_id, None) is None:
            raise InvalidRequest(
                f"{at}.tool_use_id: {block.tool_use_id!a:.80} is no call of the turn before",
                param=f"{at}.tool_use_id",
            )
        told.append(_result(block, at))
    return left


def _result(block: ToolResultBlock, at: str) -> dict[str, Any]:
    inner = blocks_of(block.content, "tool_result", f"{at}.content")
    text = "".join(each.text for each in inner if isinstance(each, TextBlock))
    content = f"{ERROR}{text}" if block.is_error else text
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
