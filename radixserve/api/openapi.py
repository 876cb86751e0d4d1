"""GET /openapi.json: what can be asked, and what is answered.

Owns: the document, made of the structs that read bodies, of what is refused beside them, and of
shapes.py. Must not know: how a call is served.

A field that is refused is there with the values that ask for nothing; null always asks for nothing.
Whether a body that fits its schema can be served, only the 400 says: which fields go together, what
a model holds, whether a prompt is text.
"""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

import msgspec
from fastapi import APIRouter, Response

from radixserve.api import shapes
from radixserve.api.anthropic import schema as anthropic_schema
from radixserve.api.anthropic import shapes as anthropic
from radixserve.api.anthropic.envelope import MESSAGES
from radixserve.api.cache import MAX_DEPTH, MAX_NODES
from radixserve.api.faults import answer
from radixserve.api.native.routes import AbortBody
from radixserve.api.openai import embeddings, schema, tokenize
from radixserve.api.programs import PATH as PROGRAMS
from radixserve.api.responses import shapes as responses
from radixserve.api.responses.schema import InputTokensRequest, ResponseRequest
from radixserve.api.shapes import Shape, or_null
from radixserve.native.request import REFUSED_FIELDS, Body
from radixserve.native.sampling import REFUSED_SAMPLING, Sampling
from radixserve.programs.request import ProgramBody

ERRORS = {
    400: "a field is wrong or not supported; error.param names it",
    401: "the server needs an API key",
    403: "the key may not do this",
    404: "there is no such model or path",
    408: "the body did not come in time",
    413: "the body is too long",
    429: "the queue is full or a limit of the key is reached; Retry-After says when",
    499: "the request was aborted",
    500: "the engine failed while it served the request",
    503: "the engine is not there, the model is loading, or the server is stopping",
    504: "the request passed its deadline",
}

_BODIES: dict[type[msgspec.Struct], dict[str, tuple[Any, ...]]] = {
    schema.ChatRequest: schema.REFUSED_CHAT,
    schema.CompletionRequest: schema.REFUSED_COMPLETION,
    embeddings.EmbeddingRequest: embeddings.REFUSED,
    tokenize.TokenizeRequest: tokenize.REFUSED,
    tokenize.DetokenizeRequest: {},
    Body: REFUSED_FIELDS,
    Sampling: REFUSED_SAMPLING,
    AbortBody: {},
    ProgramBody: {},
    schema.Message: schema.REFUSED_MESSAGE,
    **anthropic.BODIES,
    **responses.BODIES,
}
_HARMLESS = (schema.ChatRequest, schema.CompletionRequest)

_IDS: Shape = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_TEXT: Shape = {"type": "string"}
_PROMPT = {"anyOf": [_TEXT, _IDS, {"type": "array", "items": {"anyOf": [_TEXT, _IDS]}}]}
_REF = "#/components/schemas/"
# Where the struct leaves a field open, because reading it takes more than a type.
_CLOSER: dict[tuple[str, str], Shape] = {
    ("ChatRequest", "messages"): {"type": "array", "items": {"$ref": _REF + "Message"}},
    ("TokenizeRequest", "messages"): {"type": "array", "items": {"$ref": _REF + "Message"}},
    ("CompletionRequest", "prompt"): _PROMPT,
    ("EmbeddingRequest", "input"): _PROMPT,
    ("DetokenizeRequest", "tokens"): {"anyOf": [_IDS, {"type": "array", "items": _IDS}]},
    ("Body", "input_ids"): {"anyOf": [_IDS, {"type": "array", "items": _IDS}]},
    **anthropic.CLOSER,
    **responses.CLOSER,
}

_SAMPLING: Shape = {"$ref": _REF + "Sampling"}
_CLOSER["Body", "sampling_params"] = {
    "anyOf": [_SAMPLING, {"type": "array", "items": or_null(_SAMPLING)}]
}

_POSTS: dict[str, tuple[type[msgspec.Struct], Shape]] = {
    "/v1/chat/completions": (schema.ChatRequest, shapes.CHAT),
    "/v1/completions": (schema.CompletionRequest, shapes.COMPLETION),
    "/v1/embeddings": (embeddings.EmbeddingRequest, shapes.EMBEDDINGS),
    "/tokenize": (tokenize.TokenizeRequest, shapes.TOKENS),
    "/v1/tokenize": (tokenize.TokenizeRequest, shapes.TOKENS),
    "/detokenize": (tokenize.DetokenizeRequest, shapes.TEXTS),
    "/v1/detokenize": (tokenize.DetokenizeRequest, shapes.TEXTS),
    "/generate": (Body, shapes.GENERATED),
    "/abort_request": (AbortBody, shapes.DONE),
    PROGRAMS: (ProgramBody, shapes.PROGRAM),
    MESSAGES: (anthropic_schema.MessagesRequest, anthropic.MESSAGE),
    f"{MESSAGES}/count_tokens": (anthropic_schema.CountRequest, anthropic.COUNTED),
    responses.PATH: (ResponseRequest, responses.RESPONSE),
    responses.INPUT_TOKENS: (InputTokensRequest, responses.COUNTED),
}
_GETS: dict[str, Shape] = {
    "/v1/models": shapes.MODELS,
    "/v1/models/{name}": shapes.MODEL,
    "/health": shapes.STATUS,
    "/ready": shapes.STATUS,
    "/health_generate": shapes.STATUS,
    "/flush_cache": shapes.FLUSHED,
    "/model_info": shapes.MODEL_INFO,
    "/get_model_info": shapes.MODEL_INFO,
    "/server_info": shapes.SERVER_INFO,
    "/get_server_info": shapes.SERVER_INFO,
    "/v1/cache/stats": shapes.CACHE_STATS,
    "/v1/cache/tree": shapes.CACHE_TREE,
    responses.ONE: responses.RESPONSE,
    responses.INPUT_ITEMS: responses.PAGE,
    "/openapi.json": shapes.ANY_OBJECT,
}
_STREAMED = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/generate", MESSAGES, PROGRAMS, responses.PATH}
)
_PARAMETERS: dict[str, list[tuple[str, str, Shape]]] = {
    "/v1/models/{name}": [("path", "name", {"type": "string", "minLength": 1})],
    "/v1/cache/tree": [
        ("query", "depth", {"type": "integer", "minimum": 0, "maximum": MAX_DEPTH}),
        ("query", "limit", {"type": "integer", "minimum": 1, "maximum": MAX_NODES}),
        ("query", "namespace", {"type": "string"}),
    ],
    **responses.PARAMETERS,
}


def routes() -> APIRouter:
    router = APIRouter()
    made = document()

    async def openapi() -> Response:
        return answer(made)

    router.add_api_route("/openapi.json", openapi, methods=["GET"])
    return router


@functools.cache
def document() -> dict[str, Any]:
    """The OpenAPI document, made once; nobody changes it."""
    paths: dict[str, dict[str, Any]] = {}
    for path, shape in _GETS.items():
        paths.setdefault(path, {})["get"] = _operation(path, shape, None)
    for path, (body, shape) in _POSTS.items():
        paths.setdefault(path, {})["post"] = _operation(path, shape, body)
    paths["/generate"]["put"] = paths["/generate"]["post"]
    paths["/flush_cache"]["post"] = paths["/flush_cache"]["get"]
    paths[responses.ONE]["delete"] = _operation(responses.ONE, responses.DELETED, None)
    paths[responses.CANCEL] = {"post": _operation(responses.CANCEL, responses.RESPONSE, None)}
    paths["/metrics"] = {"get": _metrics()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "radixserve", "version": importlib.metadata.version("radixserve")},
        "paths": paths,
        "components": {
            "schemas": _bodies() | {"Error": shapes.ERROR, "AnthropicError": anthropic.ERROR},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"key": []}, {"x_api_key": []}],
    }


def _operation(path: str, shape: Shape, body: type[msgspec.Struct] | None) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": shape}}
    if path in _STREAMED:
        # Of each event, in the eyes of some tools, and of the whole text in those of others.
        content["text/event-stream"] = {"schema": {"description": "server-sent events"}}
    told: dict[str, Any] = {"responses": {"200": {"description": "done", "content": content}}}
    told["responses"] |= _errors(path)
    if path in _PARAMETERS:
        told["parameters"] = [
            {"in": place, "name": name, "required": place == "path", "schema": kind}
            for place, name, kind in _PARAMETERS[path]
        ]
    if body is not None:
        ref = {"schema": {"$ref": _REF + body.__name__}}
        told["requestBody"] = {"required": True, "content": {"application/json": ref}}
    return told


def _errors(path: str) -> dict[str, Any]:
    is_anthropic = path.startswith(MESSAGES)
    name = "AnthropicError" if is_anthropic else "Error"
    errors = ERRORS | anthropic.ERRORS if is_anthropic else ERRORS
    content = {"application/json": {"schema": {"$ref": _REF + name}}}
    return {str(code): {"description": why, "content": content} for code, why in errors.items()}


def _metrics() -> dict[str, Any]:
    text = {"schema": {"type": "string"}}
    kinds = {"text/plain": text, "application/openmetrics-text": text}
    good = {"200": {"description": "for Prometheus", "content": kinds}}
    return {"responses": good | _errors("/metrics")}


def _bodies() -> dict[str, Shape]:
    _, found = msgspec.json.schema_components(list(_BODIES), ref_template=_REF + "{name}")
    for kind, refused in _BODIES.items():
        properties = found[kind.__name__]["properties"]
        for name in properties:
            closer = _CLOSER.get((kind.__name__, name), properties[name])
            properties[name] = (
                closer if name in found[kind.__name__].get("required", ()) else (or_null(closer))
            )
        for name, neutral in refused.items():
            properties[name] = {"enum": [*neutral, None], "description": "not supported yet"}
        if kind in _HARMLESS:
            for name in schema.HARMLESS:
                properties[name] = {"description": "taken, and without effect here"}
    return found
