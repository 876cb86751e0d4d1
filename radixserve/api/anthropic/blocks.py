"""Content blocks, checked.

Owns: which blocks a message of each role may hold, what their fields may say. Must not know: what
becomes of them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from radixserve.api.anthropic.schema import CacheControl
from radixserve.errors import InvalidRequest
from radixserve.native.fields import Refusals, read


class TextBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    text: str
    type: Literal["text"] = "text"
    cache_control: CacheControl | None = None


class ToolUseBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    id: str
    name: str
    input: dict[str, Any]
    type: Literal["tool_use"] = "tool_use"
    cache_control: CacheControl | None = None


class ToolResultBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """content: text, or blocks of text. is_error: the model is told so, see conversation.py."""

    tool_use_id: str
    content: str | list[Any] = ""
    is_error: bool = False
    type: Literal["tool_result"] = "tool_result"
    cache_control: CacheControl | None = None


class ThinkingBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """signature: taken; it is not checked."""

    thinking: str
    signature: str = ""
    type: Literal["thinking"] = "thinking"


Block = TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock

_KINDS: dict[str, type[Block]] = {
    "text": TextBlock,
    "tool_use": ToolUseBlock,
    "tool_result": ToolResultBlock,
    "thinking": ThinkingBlock,
}
OF_ROLE: dict[str, tuple[str, ...]] = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking"),
    "tool_result": ("text",),
}
REFUSED_BLOCK: dict[str, dict[str, tuple[Any, ...]]] = {
    "text": {"citations": ([],)},
    "tool_use": {"caller": ({"type": "direct"},), "toolset_name": ()},
    "tool_result": {"toolset_name": ()},
    "thinking": {},
}


def blocks_of(content: str | list[Any], role: str, at: str) -> list[Block]:
    """role: of the message, or "tool_result" for what stands in one. at: the place of `content`.
    Raises InvalidRequest naming the place."""
    if isinstance(content, str):
        return [TextBlock(text=content)]
    return [_block(raw, role, f"{at}[{i}]") for i, raw in enumerate(content)]


def _block(raw: object, role: str, at: str) -> Block:
    kind = raw.get("type") if isinstance(raw, dict) else None
    if not isinstance(kind, str):
        raise InvalidRequest(f"{at} must be an object with a type", param=at)
    allowed = OF_ROLE[role]
    if kind not in allowed:
        where = "a tool_result" if role == "tool_result" else f"a message of role {role}"
        code = "invalid_request" if kind in _KINDS else "unsupported_parameter"
        raise InvalidRequest(
            f"{at}.type: blocks of type {kind!a:.60} are not supported in {where}, "
            f"only {', '.join(allowed)}",
            param=f"{at}.type",
            code=code,
        )
    refused: Refusals = REFUSED_BLOCK[kind]
    return read(_KINDS[kind], raw, at=at, refused=refused)
