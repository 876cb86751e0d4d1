"""The shapes of what the server answers, as JSON schema.

Owns: what a client may rely on in every answer; more may stand beside it. Must not know: routes,
how answers are made.
"""

from __future__ import annotations

from typing import Any

Shape = dict[str, Any]

TEXT: Shape = {"type": "string"}
COUNT: Shape = {"type": "integer", "minimum": 0}
FLAG: Shape = {"type": "boolean"}
NUMBER: Shape = {"type": "number"}


def thing(*, optional: Shape | None = None, **fields: Shape) -> Shape:
    """An object with these fields, all of them there but the optional."""
    return {
        "type": "object",
        "properties": fields | (optional or {}),
        "required": list(fields),
    }


def rows(of: Shape) -> Shape:
    return {"type": "array", "items": of}


def one_of(*shapes: Shape) -> Shape:
    return {"anyOf": list(shapes)}


def or_null(shape: Shape) -> Shape:
    return one_of(shape, {"type": "null"})


ERROR = thing(
    error=thing(message=TEXT, type=TEXT, param=or_null(TEXT), code=or_null(TEXT)),
)
ANY_OBJECT: Shape = {"type": "object"}
STATUS = thing(status=TEXT)

_CACHE = thing(
    matched_tokens=COUNT,
    prompt_tokens=COUNT,
    reason=TEXT,
    explanation=TEXT,
    token=or_null(thing(id=COUNT, text=TEXT)),
    cached_token=or_null(thing(id=COUNT, text=TEXT)),
    lost_tokens=COUNT,
)
_USAGE = thing(
    prompt_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=thing(cached_tokens=COUNT),
    optional={"completion_tokens": COUNT},
)
_FINISH: Shape = {"enum": ["stop", "length"]}


def _openai(choice: Shape) -> Shape:
    return thing(
        id=TEXT,
        object=TEXT,
        created=COUNT,
        model=TEXT,
        choices=rows(choice),
        usage=_USAGE,
        optional={"cache": rows(_CACHE)},
    )


_TOOL_CALL = thing(id=TEXT, type={"const": "function"}, function=thing(name=TEXT, arguments=TEXT))
CHAT = _openai(
    thing(
        index=COUNT,
        message=thing(role=TEXT, content=or_null(TEXT), optional={"tool_calls": rows(_TOOL_CALL)}),
        finish_reason={"enum": ["stop", "length", "tool_calls"]},
        logprobs=or_null(ANY_OBJECT),
    )
)
COMPLETION = _openai(
    thing(index=COUNT, text=TEXT, finish_reason=_FINISH, logprobs=or_null(ANY_OBJECT))
)
EMBEDDINGS = thing(
    object=TEXT,
    data=rows(thing(object=TEXT, index=COUNT, embedding=one_of(rows(NUMBER), TEXT))),
    model=TEXT,
    usage=_USAGE,
    optional={"cache": rows(_CACHE)},
)
_MODEL = thing(id=TEXT, object=TEXT, created=COUNT, owned_by=TEXT, max_model_len=COUNT)
MODEL = _MODEL
MODELS = thing(object=TEXT, data=rows(_MODEL))
_IDS = rows(COUNT)
TOKENS = thing(
    tokens=one_of(_IDS, rows(_IDS)), count=one_of(COUNT, rows(COUNT)), max_model_len=COUNT
)
TEXTS = thing(prompt=one_of(TEXT, rows(TEXT)), text=one_of(TEXT, rows(TEXT)))

_ANSWER = thing(
    text=TEXT,
    output_ids=_IDS,
    meta_info=thing(
        id=TEXT,
        finish_reason=or_null(thing(type={"enum": ["stop", "length", "abort"]})),
        prompt_tokens=COUNT,
        completion_tokens=COUNT,
        optional={
            "cached_tokens": COUNT,
            "e2e_latency": NUMBER,
            "queue_time": NUMBER,
            "cache": _CACHE,
        },
    ),
)
GENERATED = one_of(_ANSWER, rows(_ANSWER), thing(choices=rows(ANY_OBJECT), meta_info=ANY_OBJECT))
PROGRAM = thing(
    id=TEXT,
    returns={},
    variables=ANY_OBJECT,
    text=TEXT,
    messages=rows(thing(role=TEXT, content=TEXT)),
    usage=thing(calls=COUNT, prompt_tokens=COUNT, cached_tokens=COUNT, completion_tokens=COUNT),
    optional={"calls": rows(thing(call=TEXT, name=or_null(TEXT), reply={}))},
)
DONE = thing(success=FLAG)
FLUSHED = thing(success=FLAG, flushed_tokens=COUNT)
MODEL_INFO = thing(model_path=TEXT, is_generation=FLAG, context_len=COUNT, vocab_size=COUNT)
SERVER_INFO = thing(version=TEXT, running=COUNT, waiting=COUNT, kv_tokens=COUNT, config=ANY_OBJECT)
CACHE_STATS = thing(
    page_size=COUNT, total=COUNT, free=COUNT, evictable=COUNT, locked=COUNT, leased=COUNT,
    warm=COUNT, warm_limit=COUNT, namespaces=COUNT, nodes=COUNT, remembered=COUNT, evicted=COUNT,
)  # fmt: skip
CACHE_TREE = thing(
    namespaces=rows(thing(namespace=TEXT, left_out=COUNT, children=rows(ANY_OBJECT))),
    left_out=COUNT,
)
