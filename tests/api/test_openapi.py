"""The OpenAPI document against the app: nothing is missing, nothing is made up."""

from __future__ import annotations

import json

import jsonschema
import pytest
from fastapi.routing import APIRoute

from radixserve.api import faults, openapi
from radixserve.api.app import create_app
from radixserve.config.schema import Config
from radixserve.errors import RequestError
from tests.api.anthropic_talk import COUNT, HELLO, MESSAGES, TOOLS, body, result, text, use
from tests.api.response_talk import TOOLS as RESPONSE_TOOLS
from tests.api.response_talk import with_tools
from tests.api.scripted import MODEL, ScriptedGateway
from tests.api.talk import CHAT, COMPLETIONS, ask, hello

CALLED = [
    *HELLO,
    {"role": "assistant", "content": [use()]},
    {"role": "user", "content": [result([text("ok")])]},
]


ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "b"}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "c"}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "d"},
]


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer)


@pytest.fixture(scope="module")
def document():
    return openapi.document()


def resolved(document, shape):
    return {**shape, "components": document["components"]}


def test_every_route_is_documented_and_no_other(gateway, document) -> None:
    served = {
        (route.path.replace(":path", ""), method.lower())
        for route in flat(create_app(gateway, Config()).routes)
        for method in route.methods - {"HEAD"}
    }
    told = {(path, method) for path, each in document["paths"].items() for method in each}
    assert told == served


def flat(routes):
    """Newer versions of FastAPI keep the routers that were included as they are."""
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        elif hasattr(route, "original_router"):
            yield from flat(route.original_router.routes)


def statuses(kind: type[RequestError]) -> set[int]:
    return {kind.status}.union(*map(statuses, kind.__subclasses__()))


def test_every_status_is_documented() -> None:
    assert faults.BodyTooLarge in RequestError.__subclasses__()
    assert statuses(RequestError) == set(openapi.ERRORS)


def test_it_is_served(gateway, document) -> None:
    assert ask(gateway, "/openapi.json", None, "GET").json() == json.loads(json.dumps(document))


@pytest.mark.parametrize(
    ("path", "method", "body"),
    [
        (CHAT, "post", hello(n=2, logprobs=True, explain_cache=True)),
        (COMPLETIONS, "post", {"prompt": "a", "logprobs": 1}),
        ("/v1/embeddings", "post", {"input": ["a", [300]]}),
        ("/v1/embeddings", "post", {"input": "a", "encoding_format": "base64"}),
        ("/tokenize", "post", {"prompt": "a"}),
        ("/tokenize", "post", {"prompt": ["a", "b"]}),
        ("/detokenize", "post", {"tokens": [300]}),
        ("/generate", "post", {"text": "a", "explain_cache": True}),
        ("/generate", "post", {"text": ["a", "b"], "sampling_params": [{}, None]}),
        ("/generate", "post", {"input": [{"text": "a"}, {"choices": ["b", "c"]}]}),
        ("/abort_request", "post", {"rid": "x"}),
        (MESSAGES, "post", body(system=[text("a")], tools=TOOLS, explain_cache=True)),
        (MESSAGES, "post", body(thinking={"type": "disabled"}, output_config={"effort": "high"})),
        (MESSAGES, "post", body(messages=CALLED, tool_choice={"type": "auto"})),
        (COUNT, "post", {"messages": CALLED, "system": "a"}),
        ("/v1/responses", "post", with_tools(reasoning={"effort": "none"}, explain_cache=True)),
        ("/v1/responses", "post", {"input": ITEMS}),
        ("/v1/responses/input_tokens", "post", {"input": ITEMS, "tools": RESPONSE_TOOLS}),
        ("/v1/models", "get", None),
        (f"/v1/models/{MODEL}", "get", None),
        ("/model_info", "get", None),
        ("/server_info", "get", None),
        ("/flush_cache", "post", None),
        ("/v1/cache/stats", "get", None),
        ("/v1/cache/tree", "get", None),
        ("/health", "get", None),
    ],
)
def test_bodies_and_answers_fit_their_schema(gateway, document, path, method, body) -> None:
    operation = document["paths"][path.replace(MODEL, "{name}")][method]
    if body is not None:
        asked = operation["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.validate(body, resolved(document, asked))
        with_null = body | dict.fromkeys(set(fields(document, asked)) - body.keys())
        jsonschema.validate(with_null, resolved(document, asked))
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(body | {"colour": 1}, resolved(document, asked))
    response = ask(gateway, path, body, method.upper())
    assert response.status_code == 200
    told = operation["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(response.json(), resolved(document, told))


def fields(document, asked):
    name = asked["$ref"].rpartition("/")[2]
    return document["components"]["schemas"][name]["properties"]


def test_errors_fit_their_schema(gateway, document) -> None:
    found = ask(gateway, CHAT, {}).json()
    jsonschema.validate(found, document["components"]["schemas"]["Error"])
    found = ask(gateway, MESSAGES, {}).json()
    jsonschema.validate(found, document["components"]["schemas"]["AnthropicError"])
