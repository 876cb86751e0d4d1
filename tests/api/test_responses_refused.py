"""Bodies of responses that are refused, and the field that each error names."""

from __future__ import annotations

import json
import typing

import jsonschema
import pytest
from hypothesis import given as given_
from hypothesis import settings
from hypothesis import strategies as st
from openai.types.responses import input_token_count_params, response_create_params

from radixserve.api.responses import items, schema
from tests.api.response_talk import NOW, RESPONSES, TOOLS, answered, body, many, with_tools
from tests.api.scripted import ScriptedGateway
from tests.api.talk import ask, error_of

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
UNIQUE = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
}


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, context_len=4096)


def refused(gateway, given, status=400):
    before = len(gateway.requests)
    error = error_of(ask(gateway, RESPONSES, given), status)
    assert len(gateway.requests) == before
    return error


def test_every_field_of_the_official_client_has_one_place():
    fields, counted = (
        set(kind.__struct_fields__) for kind in (schema.ResponseRequest, schema.InputTokensRequest)
    )
    for theirs, places in (
        (response_create_params.ResponseCreateParamsBase,
         [fields, {*schema.HARMLESS}, {*schema.REFUSED}]),
        (input_token_count_params.InputTokenCountParams, [counted, {*schema.REFUSED_COUNT}]),
    ):  # fmt: skip
        known = set().union(*places)
        assert set(typing.get_type_hints(theirs)) - known == set()
        assert sum(map(len, places)) == len(known)
    assert counted <= fields


@pytest.mark.parametrize("name", sorted(schema.REFUSED))
def test_refused_fields_take_what_asks_for_nothing(gateway, name):
    for value in (None, *schema.REFUSED[name]):
        answered(gateway, body(**{name: value}))
    for value in ({"an": "effect"}, 7, [False], True):
        error = refused(gateway, body(**{name: value}))
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")


def test_null_means_the_default_everywhere(gateway):
    names = set(schema.ResponseRequest.__struct_fields__) - {"input"}
    plain = answered(gateway, body())
    nulls = answered(gateway, body(**dict.fromkeys(names | {*schema.HARMLESS})))
    same = plain.keys() - {"id", "created_at", "completed_at", "output", "usage"}
    assert {name: plain[name] for name in same} == {name: nulls[name] for name in same}
    first, second = gateway.requests
    assert (first.params, first.prompt) == (second.params, second.prompt)


def part(**fields):
    return [{"role": "user", "content": [fields]}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"role": "user", "content": "x"}] * (items.MAX_ITEMS + 1)}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": "x", "colour": 1}]}, "input[0].colour"),
        ({"input": [{"role": "assistant", "content": "x", "phase": "commentary"}]},
         "input[0].phase"),
        ({"input": part(type="input_image", image_url="http://x")}, "input[0].content[0].type"),
        ({"input": part(type="input_file", file_id="x")}, "input[0].content[0].type"),
        ({"input": part(type="output_text", text="x")}, "input[0].content[0].type"),
        ({"input": part(type="refusal", refusal="x")}, "input[0].content[0].type"),
        ({"input": part(type="input_text")}, "input[0].content[0].text"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"input": [{"type": ["message"], "role": "user", "content": "x"}]}, "input[0].type"),
        ({"input": [RESULT]}, "input[0].call_id"),
        ({"input": [RESULT, CALL]}, "input[0].call_id"),
        ({"input": [CALL, {**RESULT, "output": 5}]}, "input[1].output"),
        ({"input": [CALL, {**RESULT, "output": [{"type": "input_image"}]}]},
         "input[1].output[0].type"),
        ({"input": [{**CALL, "namespace": "x"}]}, "input[0].namespace"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]},
         "input[0].encrypted_content"),
        ({"instructions": ["x"]}, "instructions"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [NOW, NOW]}, "tools[1].name"),
        ({"tools": [{**NOW, "parameters": {"type": "string"}}]}, "tools[0].parameters.type"),
        ({"tools": [{**NOW, "parameters": UNIQUE}]}, "tools[0].parameters"),
        ({"tools": [{**NOW, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
         "tool_choice.tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto",
                                          "tools": [{"type": "mcp", "server_label": "x"}]}},
         "tool_choice.tools[0].type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 2**70}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"include": ["usage"]}, "include[0]"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": [schema.LOGPROBS], "top_logprobs": 21}, "top_logprobs"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"user": 5}, "user"),
        ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
    ],
    ids=lambda value: ascii(value)[:60],
)  # fmt: skip
def test_errors_name_the_field(gateway, fields, param):
    assert refused(gateway, body(**fields))["param"] == param


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"previous_response_id": "resp_0"}, "previous_response_id", "previous_response_not_found"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id", "item_not_found"),
        ({"model": "another"}, "model", "model_not_found"),
    ],
)
def test_what_is_not_there_is_a_404(gateway, fields, param, code):
    error = refused(gateway, body(**fields), 404)
    assert (error["param"], error["code"]) == (param, code)


def test_a_prompt_without_room_names_the_input(renderer):
    gateway = ScriptedGateway(renderer, context_len=16)
    error = error_of(ask(gateway, RESPONSES, body(input="a " * 500)), 400)
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true", "stream"),
        ("starting_after=3", "starting_after"),
        ("include[]=x", "include"),
        ("colour=1", "colour"),
    ],
)
def test_retrieving_refuses_what_it_cannot_do(gateway, query, param):
    replies = many(
        gateway,
        ("POST", RESPONSES, body()),
        ("GET", RESPONSES + "/{0}?" + query, None),
        ("GET", RESPONSES + "/{0}?stream=false&include[]=reasoning.encrypted_content", None),
    )
    assert error_of(replies[1], 400)["param"] == param
    assert replies[2].status_code == 200


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=x", "after"),
        ("before=x", "before"),
    ],
)
def test_listing_items_refuses_what_it_cannot_do(gateway, query, param):
    replies = many(
        gateway,
        ("POST", RESPONSES, body()),
        ("GET", RESPONSES + "/{0}/input_items?" + query, None),
    )
    assert error_of(replies[1], 400)["param"] == param


# ---- whatever comes, it is an answer or a 400 ----

_LEAF = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
_TEXT = st.sampled_from(["", "x", "user", "message", "function_call", "auto", "\ud83d"])
_WORDS = st.sampled_from(
    ["type", "role", "content", "id", "call_id", "name", "arguments", "output", "text", "tools",
     "format", "schema", "mode", "summary", "status"]
)  # fmt: skip
_JSON = st.recursive(
    _LEAF | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=8,
)
_KINDS = [
    {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
    {"type": "reasoning", "id": "r", "summary": [], "content": []},
    CALL,
    RESULT,
    {"type": "item_reference", "id": "x"},
]


@st.composite
def bodies(draw):
    given = with_tools(input=[dict(draw(st.sampled_from(_KINDS))) for _ in range(2)])
    target = draw(st.sampled_from([given, *given["input"]]))
    names = st.sampled_from(sorted({*schema.ResponseRequest.__struct_fields__} - {"rid"}))
    target[draw(names if target is given else _WORDS)] = draw(_JSON)
    return given


@settings(max_examples=max(20, settings.default.max_examples // 2))
@given_(given=bodies())
def test_no_body_is_a_500(renderer, given):
    gateway = ScriptedGateway(renderer, context_len=4096)
    reply = ask(gateway, RESPONSES, json.dumps(given).encode())
    assert reply.status_code in (200, 400, 404), (given, reply.text)
    assert gateway.running == 0


def test_items_have_what_the_official_client_knows():
    """Each kind of item that is read, in its whole form, with a name of its own."""
    given = [*_KINDS[:4], {"role": "assistant", "content": "x"}]
    read = items.read_items(given, lambda _: None)
    names = [
        item["id"] for each in (read, items.read_items(given, lambda _: None)) for item in each
    ]
    assert len(set(names)) == len(names) - 1, "but the one that was given"
    for item in read:
        jsonschema.validate(item, {"required": ["id", "type", "status"]})
    assert [item["type"] for item in read] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "message",
    ]
