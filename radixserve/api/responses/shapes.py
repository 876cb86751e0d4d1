"""What the Responses dialect asks and answers, as JSON schema.

Owns: its part of the OpenAPI document. Must not know: routes, how answers are made.
"""

from __future__ import annotations

from typing import Any

import msgspec

from radixserve.api.responses import exchange, items, schema, tools
from radixserve.api.responses.pages import MAX_LIMIT
from radixserve.api.shapes import ANY_OBJECT, COUNT, FLAG, TEXT, Shape, one_of, or_null, rows, thing

PATH = "/v1/responses"
INPUT_TOKENS = f"{PATH}/input_tokens"
ONE = f"{PATH}/{{name}}"
CANCEL = f"{ONE}/cancel"
INPUT_ITEMS = f"{ONE}/input_items"

_REF = "#/components/schemas/"
_KINDS: dict[type[msgspec.Struct], dict[str, tuple[Any, ...]]] = {
    items.MessageItem: items.REFUSED_MESSAGE,
    items.CallItem: items.REFUSED_CALL,
    items.OutputItem: items.REFUSED_CALL,
    items.ReasoningItem: items.REFUSED_REASONING,
    items.ReferenceItem: {},
}
BODIES: dict[type[msgspec.Struct], dict[str, tuple[Any, ...]]] = {
    schema.ResponseRequest: schema.REFUSED | {"prompt_cache_retention": ("in_memory", "24h")},
    schema.InputTokensRequest: schema.REFUSED_COUNT,
    **_KINDS,
    items.TextPart: items.REFUSED_PART,
    items.RefusalPart: {},
    tools.FunctionTool: tools.REFUSED_TOOL,
    exchange.ReasoningConfig: exchange.REFUSED_REASONING,
    exchange.TextConfig: exchange.REFUSED_TEXT,
    exchange.TextFormat: {},
}


def _ref(kind: type[msgspec.Struct]) -> Shape:
    return {"$ref": _REF + kind.__name__}


_PARTS = rows(one_of(_ref(items.TextPart), _ref(items.RefusalPart)))
CLOSER: dict[tuple[str, str], Shape] = {
    ("ResponseRequest", "include"): rows({"enum": sorted(schema.INCLUDED)}),
    ("TextConfig", "format"): _ref(exchange.TextFormat),
    ("MessageItem", "content"): one_of(TEXT, _PARTS),
    ("OutputItem", "output"): one_of(TEXT, rows(_ref(items.TextPart))),
}
for _body in ("ResponseRequest", "InputTokensRequest"):
    CLOSER[_body, "input"] = one_of(TEXT, rows(one_of(*map(_ref, _KINDS))))
    CLOSER[_body, "tools"] = rows(_ref(tools.FunctionTool))
    CLOSER[_body, "text"] = _ref(exchange.TextConfig)
    CLOSER[_body, "reasoning"] = _ref(exchange.ReasoningConfig)

_STATUS: Shape = {"enum": ["in_progress", "completed", "incomplete", "failed", "cancelled"]}
_ITEM = thing(id=TEXT, type=TEXT, status=TEXT)
RESPONSE = thing(
    id=TEXT,
    object={"const": "response"},
    created_at=COUNT,
    completed_at=or_null(COUNT),
    status=_STATUS,
    error=or_null(thing(code=TEXT, message=TEXT)),
    incomplete_details=or_null(thing(reason=TEXT)),
    model=TEXT,
    output=rows(_ITEM),
    previous_response_id=or_null(TEXT),
    store=FLAG,
    usage=or_null(
        thing(
            input_tokens=COUNT,
            input_tokens_details=thing(cached_tokens=COUNT),
            output_tokens=COUNT,
            output_tokens_details=thing(reasoning_tokens=COUNT),
            total_tokens=COUNT,
        )
    ),
    optional={"truncated": FLAG, "cache": rows(ANY_OBJECT)},
)
COUNTED = thing(object={"const": "response.input_tokens"}, input_tokens=COUNT)
DELETED = thing(id=TEXT, object={"const": "response"}, deleted={"const": True})
PAGE = thing(
    object={"const": "list"},
    data=rows(_ITEM),
    first_id=or_null(TEXT),
    last_id=or_null(TEXT),
    has_more=FLAG,
)
_NAME = [("path", "name", {"type": "string", "minLength": 1})]
PARAMETERS: dict[str, list[tuple[str, str, Shape]]] = {
    ONE: _NAME,
    CANCEL: _NAME,
    INPUT_ITEMS: [
        *_NAME,
        ("query", "order", {"enum": ["asc", "desc"]}),
        ("query", "limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT}),
        ("query", "after", TEXT),
    ],
}
