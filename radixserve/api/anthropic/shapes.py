"""What the Anthropic dialect asks and answers, as JSON schema.

Owns: its part of the OpenAPI document. Must not know: routes, how answers are made.
"""

from __future__ import annotations

from typing import Any

import msgspec

from radixserve.api.anthropic import ask, blocks, conversation, schema, thinking, tools
from radixserve.api.anthropic.envelope import OVERLOADED
from radixserve.api.shapes import ANY_OBJECT, COUNT, FLAG, TEXT, Shape, one_of, or_null, rows, thing

_REF = "#/components/schemas/"
_KINDS = (
    blocks.TextBlock,
    blocks.ToolUseBlock,
    blocks.ToolResultBlock,
    blocks.ThinkingBlock,
)
BODIES: dict[type[msgspec.Struct], dict[str, tuple[Any, ...]]] = {
    schema.MessagesRequest: schema.REFUSED,
    schema.CountRequest: schema.REFUSED_COUNT,
    conversation.InputMessage: {},
    tools.CustomTool: tools.REFUSED_TOOL,
    tools.ToolChoice: {},
    thinking.ThinkingConfig: {},
    ask.OutputConfig: {},
    blocks.TextBlock: blocks.REFUSED_BLOCK["text"],
    blocks.ToolUseBlock: blocks.REFUSED_BLOCK["tool_use"],
    blocks.ToolResultBlock: blocks.REFUSED_BLOCK["tool_result"],
    blocks.ThinkingBlock: blocks.REFUSED_BLOCK["thinking"],
}


def _ref(kind: type[msgspec.Struct]) -> Shape:
    return {"$ref": _REF + kind.__name__}


def _text_or(*kinds: type[msgspec.Struct]) -> Shape:
    return one_of(TEXT, rows(one_of(*map(_ref, kinds))))


CLOSER: dict[tuple[str, str], Shape] = {
    ("InputMessage", "content"): _text_or(*_KINDS),
    ("ToolResultBlock", "content"): _text_or(blocks.TextBlock),
}
for _body in ("MessagesRequest", "CountRequest"):
    CLOSER[_body, "messages"] = rows(_ref(conversation.InputMessage))
    CLOSER[_body, "system"] = _text_or(blocks.TextBlock)
    CLOSER[_body, "tools"] = rows(_ref(tools.CustomTool))
    CLOSER[_body, "tool_choice"] = _ref(tools.ToolChoice)
    CLOSER[_body, "thinking"] = _ref(thinking.ThinkingConfig)
    CLOSER[_body, "output_config"] = _ref(ask.OutputConfig)

_STOPS = ["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
MESSAGE = thing(
    id=TEXT,
    type={"const": "message"},
    role={"const": "assistant"},
    model=TEXT,
    content=rows(
        one_of(
            thing(type={"const": "text"}, text=TEXT),
            thing(type={"const": "tool_use"}, id=TEXT, name=TEXT, input=ANY_OBJECT),
            thing(type={"const": "thinking"}, thinking=TEXT, signature=TEXT),
        )
    ),
    stop_reason={"enum": _STOPS},
    stop_sequence=or_null(TEXT),
    usage=thing(
        input_tokens=COUNT,
        cache_creation_input_tokens=COUNT,
        cache_read_input_tokens=COUNT,
        output_tokens=COUNT,
        output_tokens_details=thing(thinking_tokens=COUNT),
    ),
    optional={"truncated": FLAG, "cache": ANY_OBJECT},
)
COUNTED = thing(input_tokens=COUNT)
ERROR = thing(
    type={"const": "error"}, error=thing(type=TEXT, message=TEXT), request_id=or_null(TEXT)
)
ERRORS = {OVERLOADED: "the queue is full or too many calls are open; Retry-After says when"}
